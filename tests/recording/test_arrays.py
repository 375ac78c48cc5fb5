"""Columns as arrays: the same figures as the rows, also those of older recordings."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from nearpeak.errors import SettingError
from nearpeak.recording import Recording, RowWriter, StepRecord, describe_run
from nearpeak.recording.arrays import read_columns
from nearpeak.recording.writer import to_json


def recorded(folder: Path) -> Recording:
    writer = RowWriter(folder)
    writer.write_info("run", to_json(describe_run()))
    rows = [
        StepRecord(process=p, step=s, loss=float(s) if s else float("nan"), wall_s=0.5)
        for s in range(3)
        for p in (1, 0)
    ]
    writer.write([*rows, StepRecord(process=0, step=3)])
    writer.close()
    return Recording(folder)


def test_figures_come_in_the_order_of_the_key_and_unknown_is_nan(tmp_path: Path) -> None:
    columns = read_columns(recorded(tmp_path), StepRecord, ("process", "step", "wall_s", "loss", "tokens"))
    assert list(columns["process"]) == [0, 0, 0, 0, 1, 1, 1]
    assert list(columns["step"]) == [0, 1, 2, 3, 0, 1, 2]
    assert np.isnan(columns["wall_s"][3])
    assert np.isnan(columns["loss"][0])
    assert columns["loss"][2] == 2.0
    assert np.isnan(columns["tokens"]).all()


def test_a_condition_picks_rows(tmp_path: Path) -> None:
    columns = read_columns(
        recorded(tmp_path), StepRecord, ("step",), where="process = ? AND step > ?", arguments=(1, 0)
    )
    assert list(columns["step"]) == [1, 2]


def test_a_column_that_an_older_recording_lacks_is_unknown(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    with sqlite3.connect(tmp_path / "recording.sqlite") as database:
        database.execute("ALTER TABLE steps DROP COLUMN tokens")
    database.close()
    assert np.isnan(read_columns(recording, StepRecord, ("tokens", "step"))["tokens"]).all()


def test_no_rows_are_empty_columns_and_a_wrong_name_is_said(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    assert read_columns(recording, StepRecord, ("step",), where="step > 99")["step"].shape == (0,)
    with pytest.raises(SettingError, match="no column 'speed'"):
        read_columns(recording, StepRecord, ("speed",))
