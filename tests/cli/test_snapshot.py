from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from nearpeak.cli.main import main

MIB = 1 << 20
FRAMES = [{"filename": "/home/me/project/model.py", "line": 12, "name": "attend"}]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    address = 1 << 40
    blocks = [
        {"address": address, "size": 30 * MIB, "requested_size": 30 * MIB, "state": "active_allocated"},
        {"address": address + 30 * MIB, "size": 10 * MIB, "requested_size": 0, "state": "inactive"},
    ]
    segment = {"device": 0, "address": address, "total_size": 40 * MIB, "stream": 0, "segment_type": "large"}
    event: dict[str, Any] = {"action": "alloc", "addr": address, "size": 30 * MIB, "stream": 0, "time_us": 5}
    content = {
        "segments": [{**segment, "blocks": blocks}],
        "device_traces": [
            [{**event, "action": "segment_alloc", "size": 40 * MIB}, {**event, "frames": FRAMES}],
        ],
    }
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def test_report_names_the_peak_and_its_holder(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", str(file)]) == 0
    out = capfd.readouterr().out
    assert "attend (project/model.py:12)" in out
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would reserve" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_and_output_agree(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.json"
    assert main(["snapshot", str(file), "--json", "--output", str(output)]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads(output.read_text())
    (device,) = printed["devices"]
    assert printed["schema"] == 1
    assert device["holders"][0] == {
        "site": "attend (project/model.py:12)",
        "phase": "forward",
        "bytes": 30 * MIB,
        "blocks": 1,
    }


def test_existing_output_is_kept_without_force(file: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    output.write_text("mine")
    assert main(["snapshot", str(file), "--output", str(output)]) == 2
    assert output.read_text() == "mine"
    assert main(["snapshot", str(file), "--output", str(output), "--force"]) == 0
    assert output.read_text() != "mine"


def test_other_files_are_an_error_without_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n")
    assert main(["snapshot", str(path)]) == 1
    assert "not a pickle file" in capfd.readouterr().err
