"""The algebra of intervals against a slow, obvious one: sets of whole nanoseconds."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.diagnose.intervals import NOTHING, Spans, covered, intersection, length, minus, size_within, union, within

intervals = st.lists(st.tuples(st.integers(-30, 60), st.integers(-2, 25)), max_size=12)


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    """Obvious: every nanosecond of every interval."""
    return {moment for start, duration in pairs for moment in range(start, start + duration)}


def spans(pairs: list[tuple[int, int]]) -> Spans:
    return covered([start for start, _ in pairs], [start + duration for start, duration in pairs])


def opened(found: Spans) -> set[int]:
    return {moment for start, end in zip(found.start, found.end, strict=True) for moment in range(start, end)}


def is_sound(found: Spans, *, may_touch: bool = False) -> bool:
    apart = found.start[1:] >= found.end[:-1] if may_touch else found.start[1:] > found.end[:-1]
    return bool(np.all(found.end > found.start) and np.all(apart))


@given(intervals)
def test_covered(pairs: list[tuple[int, int]]) -> None:
    assert opened(spans(pairs)) == moments(pairs)
    assert is_sound(spans(pairs)) and length(spans(pairs)) == len(moments(pairs))


@given(intervals, intervals)
def test_two_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = spans(one), spans(other)
    assert opened(intersection(a, b)) == moments(one) & moments(other) and is_sound(intersection(a, b))
    assert opened(minus(a, b)) == moments(one) - moments(other) and is_sound(minus(a, b))
    assert opened(union(a, b, NOTHING)) == moments(one) | moments(other)


@given(intervals, st.lists(st.integers(-40, 90), min_size=2, max_size=6, unique=True))
def test_windows(pairs: list[tuple[int, int]], edges: list[int]) -> None:
    edges = sorted(edges)
    start, end = np.array(edges[:-1]), np.array(edges[1:])
    obvious = [len(moments(pairs) & set(range(a, b))) for a, b in itertools.pairwise(edges)]
    assert size_within(spans(pairs), start, end).tolist() == obvious
    inside = within(spans(pairs), start, end)
    assert opened(inside) == moments(pairs) & set(range(edges[0], edges[-1])) and is_sound(inside, may_touch=True)


def test_intervals_that_touch_are_one() -> None:
    assert [part.tolist() for part in covered([5, 0, 3], [9, 3, 5])] == [[0], [9]]
