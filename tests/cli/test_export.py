"""`nearpeak export` from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearpeak.cli.export import TABLES
from nearpeak.cli.main import main
from nearpeak.report.export.tables import EXPORTED

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from samples import record_run


def test_formats_are_written_and_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path / "run", steps=20)
    csv, trace, board = (str(tmp_path / name) for name in ("steps.csv", "trace.json", "board"))
    arguments = ["export", str(tmp_path / "run"), "--csv", csv, "--perfetto", trace, "--tensorboard", board, "--json"]
    assert main(arguments) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert [(each["path"], each["what"]) for each in written] == [
        (trace, "events"),
        (csv, "rows of steps"),
        (board, "steps"),
    ]
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0


def test_bad_usage_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path / "run", steps=5)
    assert main(["export", str(tmp_path / "run")]) == 2
    assert "at least one of --perfetto" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--csv", str(tmp_path / "x" / "y.csv")]) == 1


def test_the_tables_offered_are_those_that_are_written() -> None:
    assert set(TABLES) == set(EXPORTED)
