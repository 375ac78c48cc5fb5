"""Axes end at round numbers and hold their figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.report.html.axes import Kind, axis_from

KINDS = ("ms", "s", "bytes", "percent", "number", "count", "per_s", "watt", "celsius", "mhz")


@given(st.sampled_from(KINDS), st.floats(0, 1e12), st.floats(1e-6, 1e12))
def test_axes_hold_their_figures_with_few_marks(kind: Kind, low: float, width: float) -> None:
    axis = axis_from(kind, low, low + width)
    assert axis.low <= low * (1 + 1e-9)
    assert axis.high >= (low + width) * (1 - 1e-9)
    assert len(axis.ticks) <= 8
    assert all(-1e-6 <= share <= 1 + 1e-6 for share, _ in axis.labels())


@pytest.mark.parametrize(
    ("kind", "high", "labels"),
    [
        ("bytes", 8 * 2**30, ["0 B", "2 GiB", "4 GiB", "6 GiB", "8 GiB"]),
        ("ms", 1000.0, ["0 ms", "250 ms", "500 ms", "750 ms", "1 s"]),
        ("s", 300.0, ["0 s", "1:00", "2:00", "3:00", "4:00", "5:00"]),
        ("percent", 100.0, ["0 %", "25 %", "50 %", "75 %", "100 %"]),
    ],
)
def test_marks_stand_at_round_numbers(kind: Kind, high: float, labels: list[str]) -> None:
    assert [text for _, text in axis_from(kind, 0.0, high).labels()] == labels
