"""Timelines: pixel by pixel against the obvious way, and never more than there are pixels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.report.html import lanes
from nearpeak.report.html.lanes import LEVELS, PIXELS, Lane, pieces_of, timeline

intervals = st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 300), st.integers(0, 2)), min_size=1, max_size=25)


@given(intervals)
def test_each_pixel_shows_the_kind_that_fills_most_of_it(found: list[tuple[float, float, int]]) -> None:
    start, duration, kind = (np.array(column) for column in zip(*found, strict=True))
    filled = lanes._coverage(Lane("a", start, duration, kind), 0.0, 1000.0, 3)[0]
    expected = np.zeros((3, PIXELS))
    for begin, length, which in found:
        end = min(begin + length, 1000.0)
        for pixel in range(int(begin), min(PIXELS, int(np.ceil(end)))):
            expected[which, pixel] += min(end, pixel + 1) - max(begin, pixel)
    assert filled == pytest.approx(expected, abs=1e-6)


def test_a_million_intervals_cost_no_more_than_the_pixels() -> None:
    random = np.random.default_rng(0)
    start = np.sort(random.uniform(0, 1e6, 1_000_000))
    lane = Lane("stream 7", start, random.exponential(0.5, len(start)), random.integers(0, 3, len(start)))
    drawn = timeline("Timeline", [lane], {"compute": "compute", "copy": "copy", "idle": "other"})
    assert drawn is not None
    assert len(drawn) < 60_000


def test_gaps_stay_gaps_and_labels_come_from_the_longest() -> None:
    lane = Lane(
        "CPU", np.array([0.0, 500.0, 500.1]), np.array([250.0, 250.0, 0.2]), np.array([0, 1, 0]), ["a", "b", "c"]
    )
    pieces = pieces_of(lane, 0.0, 1000.0, 2)
    assert [(p.first, p.end, p.kind, p.label) for p in pieces] == [(0, 250, 0, "a"), (500, 750, 1, "b")]
    assert all(piece.level == LEVELS for piece in pieces)


def test_what_hardly_fills_a_pixel_is_pale() -> None:
    (piece,) = pieces_of(Lane("a", np.array([10.0]), np.array([0.1]), np.array([0])), 0.0, 1000.0, 1)
    assert (piece.first, piece.end, piece.level) == (10, 11, 1)
