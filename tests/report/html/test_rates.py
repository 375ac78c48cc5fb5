"""Samples and tokens a second of several ranks, of which each counts tokens in steps of its own."""

from __future__ import annotations

import numpy as np
import pytest

from nearpeak.recording import ProcessRecord
from nearpeak.report.html.run_charts import _rates
from nearpeak.report.run_columns import ProcessColumns

NAN = float("nan")


def rank(number: int, tokens: list[float]) -> ProcessColumns:
    x = np.arange(len(tokens), dtype=float)
    values = {"tokens": np.array(tokens), "wall_s": np.full(len(tokens), 0.5)}
    return ProcessColumns(ProcessRecord(process=number, pid=1, started_ns=0), x, values)


def test_a_rank_that_did_not_count_is_not_taken_for_zero() -> None:
    (line,) = _rates([rank(0, [100, NAN, 80, NAN]), rank(1, [60, 90, NAN, NAN])], "tokens")
    assert line.y[:3].tolist() == pytest.approx([320, 360, 320])
    assert np.isnan(line.y[3])


def test_nothing_is_told_where_a_rank_never_counted() -> None:
    assert _rates([rank(0, [100, 100]), rank(1, [NAN, NAN])], "tokens") == []
