"""`nearpeak compare` from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearpeak.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from samples import record_run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str, str]:
    """Two alike, and one that waits less for its data."""
    record_run(tmp_path / "a", steps=80, seed=1)
    record_run(tmp_path / "again", steps=80, seed=2)
    record_run(tmp_path / "b", steps=80, seed=3, input_ms=10.0)
    return str(tmp_path / "a"), str(tmp_path / "again"), str(tmp_path / "b")


def test_a_difference_is_told_with_its_phase(
    runs: tuple[str, str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["compare", runs[0], runs[2]]) == 0
    text = capsys.readouterr().out
    assert "less time per step than" in " ".join(text.split())
    (waited,) = [line for line in text.splitlines() if line.startswith("waiting for data")]
    (forward,) = [line for line in text.splitlines() if line.startswith("forward")]
    assert waited.endswith("yes")
    assert forward.endswith("–")
    assert max(map(len, text.splitlines())) <= 80


def test_two_of_the_same_are_not_told_apart(runs: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", runs[0], runs[1]]) == 0
    assert "No difference can be told" in capsys.readouterr().out


def test_json(runs: tuple[str, str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["compare", runs[0], runs[2], "--json", "--output", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text())
    assert document["verdict"] == "faster"
    assert document["ratio"]["low"] < document["ratio"]["likely"] < document["ratio"]["high"] < 1
    assert document["setup"] == []


def test_what_cannot_be_compared_is_said(
    runs: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert main(["compare", runs[0], str(tmp_path / "notes.txt")]) == 1
    assert "nothing that can be compared" in capsys.readouterr().err
    assert main(["compare", runs[0], str(tmp_path / "nowhere")]) == 1
    assert main(["compare", runs[0]]) == 2


def test_few_steps_tell_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("c", "d"):
        record_run(tmp_path / name, steps=4)
    assert main(["compare", str(tmp_path / "c"), str(tmp_path / "d")]) == 0
    assert "Too few steps" in capsys.readouterr().out


def test_forty_columns_show_every_phase(
    runs: tuple[str, str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearpeak.report.terminal.width", lambda file: 40)
    assert main(["compare", runs[0], runs[2]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert {"waiting for data", "forward", "all"} <= set(lines)
    assert "    a real change" in lines
