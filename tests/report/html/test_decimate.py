"""Decimation against the obvious way: the same figures, one bin at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.report.html.decimate import Grid, bin_means, bin_peaks, bin_summary, grid_over

points = st.lists(
    st.tuples(st.floats(0, 100), st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")))), min_size=1, max_size=60
)


@given(points, st.integers(1, 12))
def test_each_bin_says_what_lies_in_it(pairs: list[tuple[float, float]], bins: int) -> None:
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    grid = Grid(0.0, 100.0, bins)
    summary, means = bin_summary(grid, x, y), bin_means(grid, x, y)
    index = grid.index(x)
    for position in range(bins):
        inside = np.sort(y[(index == position) & np.isfinite(y)])
        if not len(inside):
            assert np.isnan([summary.low[position], summary.median[position], means[position]]).all()
            continue
        assert summary.low[position] == inside[0]
        assert summary.high[position] == inside[-1]
        assert summary.median[position] == inside[int(0.5 * (len(inside) - 1) + 0.5)]
        assert means[position] == pytest.approx(inside.mean(), abs=1e-6)


def test_the_peak_of_a_million_points_stays() -> None:
    x = np.arange(1_000_000.0)
    y = np.ones_like(x)
    y[123_456] = 50.0
    grid = grid_over([x])
    assert grid is not None
    assert grid.bins == 320
    assert np.nanmax(bin_summary(grid, x, y).high) == 50.0


def test_parts_are_shown_at_the_moment_of_their_greatest_sum() -> None:
    first, second = np.array([1.0, 5.0, 2.0, 0.0]), np.array([1.0, 1.0, 6.0, 0.0])
    peaks = bin_peaks(Grid(0.0, 4.0, 2), np.array([0.0, 1.0, 2.0, 3.0]), [first, second])
    assert [list(part) for part in peaks] == [[5.0, 2.0], [1.0, 6.0]]


def test_nothing_known_is_no_grid() -> None:
    assert grid_over([np.array([np.nan]), np.array([])]) is None
