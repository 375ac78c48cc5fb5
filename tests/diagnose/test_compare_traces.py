"""Two traces, one slower in known places."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearpeak.cli.main import main
from nearpeak.diagnose.compare_traces import compare_traces, traced_run
from nearpeak.errors import DataError
from nearpeak.trace.kineto import read_kineto
from nearpeak.trace.nsys import read_nsys
from nearpeak.trace.timeline import Timeline

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))  # tests are no package
from mutations import small_kineto
from nsys_writer import write_export
from xprof_writer import write_run

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "traces"


def pair(tmp_path: Path, **changed: tuple[str, str]) -> tuple[Path, Path]:
    """A trace and the same with texts of it replaced."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    content = small_kineto(steps=8).decode()
    first.write_text(content)
    for old, new in changed.values():
        assert old in content
        content = content.replace(old, new)
    second.write_text(content)
    return first, second


def test_the_causes_changes_sum_to_that_of_the_step(tmp_path: Path) -> None:
    first, second = pair(tmp_path, kernel=('"dur": 4000.25', '"dur": 1500.25'), loading=('"dur": 3000,', '"dur": 900,'))
    runs = [traced_run(path.name, [read_kineto(path)]) for path in (first, second)]
    compared = compare_traces(*runs)
    whole = compared.whole.second_ms - compared.whole.first_ms
    assert sum(each.change_ms for each in compared.causes) == pytest.approx(whole, abs=1e-9)
    changes = {each.cause: each.change_ms for each in compared.causes}
    assert changes["compute"] == pytest.approx(-2.5)
    assert changes["input"] == pytest.approx(-2.1)
    kernels = {each.name: each for each in compared.kernels}
    assert compared.kernels[0].name == "ampere_sgemm_128x64_nn"
    assert kernels["ampere_sgemm_128x64_nn"].change_ms == pytest.approx(-2.5)
    assert kernels["ampere_sgemm_128x64_nn"].first_count == 1
    assert kernels["Memcpy HtoD (Pageable -> Device)"].change_ms == 0


def test_kernels_that_are_new_or_gone_count_from_nothing(tmp_path: Path) -> None:
    first, second = pair(tmp_path, name=("ampere_sgemm_128x64_nn", "ampere_bf16_s16816gemm"))
    compared = compare_traces(*(traced_run(path.name, [read_kineto(path)]) for path in (first, second)))
    kernels = {each.name: each for each in compared.kernels}
    gone, new = kernels["ampere_sgemm_128x64_nn"], kernels["ampere_bf16_s16816gemm"]
    assert (gone.second_ms, gone.second_count, new.first_ms) == (0, 0, 0)
    assert gone.change_ms == pytest.approx(-new.change_ms)


def test_ranks_are_averaged_and_other_numbers_of_them_are_told(tmp_path: Path) -> None:
    one = traced_run("one", read_nsys(write_export(tmp_path / "one.sqlite", processes=1)))
    two = traced_run("two", read_nsys(write_export(tmp_path / "two.sqlite", processes=2)))
    compared = compare_traces(one, two)
    assert all(each.change_ms == pytest.approx(0) for each in (*compared.causes, *compared.kernels))
    assert any("1 and 2 devices" in each for each in compared.unknown)


def test_a_trace_without_steps_cannot_be_compared() -> None:
    with pytest.raises(DataError, match=r"empty\.json: no step"):
        traced_run("empty.json", [Timeline(source="empty.json")])


def test_the_verb_compares_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(path) for path in pair(tmp_path, step=('"dur": 10000,', '"dur": 9950,'))]
    assert main(["compare", *paths]) == 0
    text = capsys.readouterr().out
    assert "shorter than" in text and "waiting for data" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["compare", *paths, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["second_ms"] < document["first_ms"]
    assert {each["cause"] for each in document["causes"]} >= {"compute", "input", "launch"}
    assert document["kernels"][0]["name"]
    (tmp_path / "notes.txt").write_text("no trace")
    assert main(["compare", paths[0], str(tmp_path / "notes.txt")]) == 1


def test_runs_of_xprofs_figures_are_compared_by_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, waiting_ms in (("before", 70.0), ("after", 10.0)):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, ("w0", "w1"), compute=20.0, wait_input=waiting_ms)
    assert main(["compare", str(tmp_path / "before"), str(tmp_path / "after"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["first_ms"], document["second_ms"]) == (90.0, 30.0)
    assert document["causes"][0] == {"cause": "input", "first_ms": 70.0, "second_ms": 10.0, "change_ms": -60.0}
    assert document["kernels"] == []


@pytest.mark.skipif(not CASES.is_dir(), reason="the recorded traces are not on this machine")
def test_the_recorded_pair_is_explained() -> None:
    """Workers took the waiting away; the step's own host work grew, so less was gained than was waited."""
    names = ("resnet50_v100_workers0_a", "resnet50_v100_workers4_a")
    compared = compare_traces(*(traced_run(name, [read_kineto(CASES / f"{name}.json.gz")]) for name in names))
    assert compared.causes[0].cause == "input"
    changes = {each.cause: each.change_ms for each in compared.causes}
    assert changes["input"] < -30 and changes["launch"] + changes["host_work"] > 10
    assert compared.whole.second_ms / compared.whole.first_ms == pytest.approx(1 - 0.089, abs=0.01)


def test_traces_of_unlike_length_without_marks_compare_by_step(tmp_path: Path) -> None:
    """Six steps and twelve of the same job, no ranges in either: nothing changed."""
    runs = []
    for steps in (6, 12):
        path = write_export(
            tmp_path / f"{steps}.sqlite", processes=1, steps=steps, without=("NVTX_EVENTS",), more_kernels=8
        )
        runs.append(traced_run(path.name, read_nsys(path)))
    compared = compare_traces(*runs)
    assert compared.whole.first_ms == compared.whole.second_ms == pytest.approx(10)
    assert all(each.change_ms == pytest.approx(0) for each in (*compared.causes, *compared.kernels))
    assert sum("steps are not marked" in each for each in compared.unknown) == 2
    assert not any("whole trace counts as one" in each for each in compared.unknown)


def test_where_whole_traces_are_steps_it_is_told(tmp_path: Path) -> None:
    runs = []
    for steps in (3, 4):
        path = write_export(tmp_path / f"{steps}.sqlite", processes=1, steps=steps, without=("NVTX_EVENTS",))
        runs.append(traced_run(path.name, read_nsys(path)))
    assert any("whole trace counts as one step" in each for each in compare_traces(*runs).unknown)
