"""XProf's own files, made here, into its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from xprof_writer import analysis, write_run

from nearpeak.errors import DataError
from nearpeak.trace.xprof import PARTS, is_xprof, read_xprof

STEP = {"compute": 20.0, "wait_input": 70.0, "launch": 4.0, "unknown": 6.0}


def test_the_parts_of_every_step_are_those_of_the_file(tmp_path: Path) -> None:
    (figures,) = read_xprof(write_run(tmp_path, **STEP))
    assert figures.host == "worker-0"
    assert figures.step_ms.tolist() == [100.0] * 3
    assert set(figures.parts_ms) == set(PARTS)
    assert figures.parts_ms["wait_input"].tolist() == [70.0] * 3
    assert (figures.input_percent, figures.verdict, figures.hardware) == (60.0, "host", "GPU")
    assert figures.device_idle_share == pytest.approx(0.375)
    assert figures.stages[0].category == "Preprocessing"
    assert [(op.name, op.on_device) for op in figures.ops[:2]] == [("volta_sgemm", True), ("Iterator::Map", False)]
    assert figures.ops[0].eligible is True and figures.ops[0].tensor_cores is False


def test_hosts_of_a_run_are_kept_apart(tmp_path: Path) -> None:
    found = read_xprof(write_run(tmp_path, ("worker-1", "worker-0"), **STEP))
    assert [figures.host for figures in found] == ["worker-0", "worker-1"]


def test_the_sum_of_all_hosts_does_not_count_beside_them(tmp_path: Path) -> None:
    found = read_xprof(write_run(tmp_path, ("ALL_HOSTS", "worker-1", "worker-0"), **STEP))
    assert [figures.host for figures in found] == ["worker-0", "worker-1"]
    assert any("ALL_HOSTS" in note for note in found[0].notes)
    (alone,) = read_xprof([path for path in tmp_path.iterdir() if path.name.startswith("ALL_HOSTS")])
    assert alone.step_ms.tolist() == [100.0] * 3


def test_one_file_of_the_run_is_enough(tmp_path: Path) -> None:
    files = write_run(tmp_path, **STEP)
    for path in files[:2]:
        (figures,) = read_xprof([path])
        assert figures.step_ms.tolist() == [100.0] * 3
    (figures,) = read_xprof([files[3]])
    assert any("no times of steps" in note for note in figures.notes)


def test_tables_as_json(tmp_path: Path) -> None:
    columns = [{"id": "stepnum"}, {"id": "deviceComputeTimeMs"}, {"id": "infeedTimeMs"}, {"id": "otherTimeMs"}]
    rows = [{"c": [{"v": str(n)}, {"v": 3.0}, {"v": 6.5}, None]} for n in range(2)]
    path = tmp_path / "host.input_pipeline.json"
    path.write_text(json.dumps([{"cols": columns, "rows": rows, "p": {"hardware_type": "GPU"}}, {"cols": []}]))
    (figures,) = read_xprof([path])
    assert figures.step_ms.tolist() == [9.5, 9.5]
    assert figures.parts_ms["wait_input"].tolist() == [6.5, 6.5]


def test_damage_is_named_and_the_other_files_still_count(tmp_path: Path) -> None:
    files = write_run(tmp_path, **STEP)
    files[0].write_bytes(files[0].read_bytes()[:-7])
    (figures,) = read_xprof(files)
    assert figures.step_ms.tolist() == [100.0] * 3
    assert any("overview_page.pb is damaged" in note for note in figures.notes)
    with pytest.raises(DataError, match="damaged"):
        read_xprof(files[:1])


def test_files_are_known_by_their_names() -> None:
    assert is_xprof(Path("a.b/vm.overview_page.pb"))
    assert is_xprof(Path("overview_page.json"))
    assert not is_xprof(Path("overview.pb"))
    assert not is_xprof(Path("vm.xplane.pb"))


def test_tpu_steps_sum_their_parts(tmp_path: Path) -> None:
    from wire_writer import message, packed

    details = packed("PerTpuStepDetails", message({1: 4, 13: 5.0, 14: 1.0, 3: 2.0, 11: 0.5, 12: 0.5}))
    (tmp_path / "t.input_pipeline.pb").write_bytes(message({4: [details], 16: 1}))
    (figures,) = read_xprof([tmp_path / "t.input_pipeline.pb"])
    assert figures.step_ms.tolist() == [9.0]
    assert figures.parts_ms["collectives"].tolist() == [1.0]


def test_the_writer_writes_what_the_reader_reads() -> None:
    assert analysis([STEP]) != analysis([{**STEP, "compute": 21.0}])
