"""`nearpeak diagnose` of what other profilers write, from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearpeak.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))  # tests are no package
from mutations import small_kineto
from nsys_writer import write_export
from traces import loop, write
from xplane_writer import training_space
from xprof_writer import write_run

Captured = pytest.CaptureFixture[str]


def document(paths: list[Path], capsys: Captured) -> dict[str, object]:
    assert main(["diagnose", *map(str, paths), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def run_folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "plugins" / "profile" / name
    folder.mkdir(parents=True)
    return folder


def test_an_export_of_nsight_systems(tmp_path: Path, capsys: Captured) -> None:
    found = document([write_export(tmp_path / "run.sqlite", processes=1)], capsys)
    assert found["steps"] == 4
    breakdown = found["breakdown"]
    assert isinstance(breakdown, dict)
    # of steps of 10 ms, the last 9.9: kernels 4 ms, an exchange of 2, a copy of 1, and 1.8 waiting for the next batch
    assert breakdown["compute"] == pytest.approx(16 / 39.9 * 100, abs=0.01)
    assert breakdown["communication"] == pytest.approx(8 / 39.9 * 100, abs=0.01)
    assert breakdown["copy"] == pytest.approx(4 / 39.9 * 100, abs=0.01)
    assert breakdown["idle"]["input"] == pytest.approx(7.2 / 39.9 * 100, abs=0.01)


def test_a_folder_of_tensorboard_takes_the_last_run_and_no_copy_of_it(tmp_path: Path, capsys: Captured) -> None:
    for name in ("2024_01_01_00_00_00", "2024_01_02_00_00_00"):
        folder = run_folder(tmp_path, name)
        (folder / "vm.xplane.pb").write_bytes(training_space(3))
        (folder / "vm.trace.json").write_bytes(small_kineto())
    found = document([tmp_path], capsys)
    assert len(found["ranks"]) == 1  # pyright: ignore[reportArgumentType]
    assert found["steps"] == 3
    assert "2024_01_02" in json.dumps(found["unknown"])
    assert found["breakdown"]["compute"] == pytest.approx(15 / 29.9 * 100, abs=0.5)  # pyright: ignore[reportIndexIssue]


def test_workers_of_one_run_are_ranks(tmp_path: Path, capsys: Captured) -> None:
    folder = run_folder(tmp_path, "2024")
    for worker in range(3):
        (folder / f"worker-{worker}.xplane.pb").write_bytes(training_space(2 + worker))
    assert len(document([tmp_path], capsys)["ranks"]) == 3  # pyright: ignore[reportArgumentType]


def test_xprofs_own_figures_where_the_trace_is_gone(tmp_path: Path, capsys: Captured) -> None:
    folder = run_folder(tmp_path, "2024")
    write_run(folder, ("w0", "w1"), compute=20.0, wait_input=70.0, unknown=10.0)
    found = document([tmp_path], capsys)
    assert found["breakdown"]["idle"]["input"] == pytest.approx(70)  # pyright: ignore[reportIndexIssue]
    assert len(found["ranks"]) == 2  # pyright: ignore[reportArgumentType]
    assert found["findings"][0]["kind"] == "input"  # pyright: ignore[reportIndexIssue]
    assert "XProf's own figures" in json.dumps(found["unknown"])
    (folder / "w0.xplane.pb").write_bytes(training_space(3))
    assert document([tmp_path], capsys)["steps"] == 3  # the trace itself is better


def test_perfetto_lays_the_causes_over_the_trace(tmp_path: Path, capsys: Captured) -> None:
    trace, target = tmp_path / "trace.json", tmp_path / "out.json"
    trace.write_bytes(small_kineto())
    assert main(["diagnose", str(trace), "--perfetto", str(target)]) == 0
    original, found = json.loads(trace.read_text()), json.loads(target.read_text())
    ours = [event for event in found["traceEvents"] if event not in original["traceEvents"]]
    assert len(found["traceEvents"]) == len(ours) + len(original["traceEvents"])
    causes = [event for event in ours if event["ph"] == "X" and not event["name"].startswith("step")]
    steps = [event for event in original["traceEvents"] if event["name"].startswith("ProfilerStep")]
    assert sum(event["dur"] for event in causes) == pytest.approx(sum(event["dur"] for event in steps))
    assert min(event["ts"] for event in causes) == steps[0]["ts"]
    assert main(["diagnose", str(trace), "--perfetto", str(target)]) == 2  # it is there already


def test_perfetto_is_given_other_formats_too(tmp_path: Path, capsys: Captured) -> None:
    export, target = write_export(tmp_path / "run.sqlite"), tmp_path / "out.json"
    assert main(["diagnose", str(export), "--perfetto", str(target)]) == 0
    names = {event["name"] for event in json.loads(target.read_text())["traceEvents"]}
    assert {"compute", "gemm_kernel", "exposed copy HtoD pageable", "step 0"} <= names
    write_run(tmp_path, compute=1.0)
    assert main(["diagnose", str(tmp_path / "worker-0.overview_page.pb"), "--perfetto", str(tmp_path / "x.json")]) == 1
    assert "no trace of single events" in capsys.readouterr().err


def test_a_report_of_nsight_systems_is_to_be_exported(tmp_path: Path, capsys: Captured) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"NVIDIA")
    assert main(["diagnose", str(report)]) != 0
    assert "nsys export --type sqlite" in " ".join(capsys.readouterr().err.split())


def test_sixteen_ranks_some_packed_some_without_their_rank(tmp_path: Path, capsys: Captured) -> None:
    """Names carry machines' numbers, not ranks."""
    for rank in range(16):
        around = {"distributedInfo": {"rank": rank, "world_size": 16}} if rank % 5 else {}
        name = f"gpu-{rank // 8}_{900 + rank}.16941282015{rank:02}.pt.trace.json{'.gz' if rank % 2 else ''}"
        write(tmp_path / name, loop(begin_us=1000.0 + rank / 4), **around)
    found = document([tmp_path], capsys)
    ranks = found["ranks"]
    assert isinstance(ranks, list) and len(ranks) == 16
    assert all(rank["compute"] == pytest.approx(30) for rank in ranks)
