"""Sets of time, as arrays of begins and ends: sorted, apart from one another, in whole nanoseconds. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["NOTHING", "Spans", "covered", "intersection", "length", "minus", "size_within", "union", "within"]

Int64s = NDArray[np.int64]


class Spans(NamedTuple):
    """A set of time: `start` ascending, each end after its start and before the next start."""

    start: Int64s
    end: Int64s


NOTHING = Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))


def covered(start: ArrayLike, end: ArrayLike) -> Spans:
    """The set that these intervals cover; they may overlap, touch, and come in any order. Empty ones count for none."""
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return NOTHING
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    begins = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return Spans(start[np.append(0, begins)], reach[np.append(begins - 1, len(reach) - 1)])


def union(*sets: Spans) -> Spans:
    """In any of them."""
    filled = [each for each in sets if len(each.start)]
    if len(filled) < 2:
        return filled[0] if filled else NOTHING
    return covered(np.concatenate([each.start for each in filled]), np.concatenate([each.end for each in filled]))


def intersection(one: Spans, other: Spans) -> Spans:
    """In both."""
    if not len(one.start) or not len(other.start):
        return NOTHING
    first = np.searchsorted(other.end, one.start, side="right")
    last = np.searchsorted(other.start, one.end, side="left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(one.start)), counts)
    ranks = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    theirs = first[mine] + ranks
    start = np.maximum(one.start[mine], other.start[theirs])
    end = np.minimum(one.end[mine], other.end[theirs])
    return Spans(start, end)


def minus(one: Spans, other: Spans) -> Spans:
    """In the first and not in the other."""
    if not len(one.start) or not len(other.start):
        return one
    low, high = min(one.start[0], other.start[0]) - 1, max(one.end[-1], other.end[-1]) + 1
    outside = Spans(np.append(low, other.end), np.append(other.start, high))
    return intersection(one, outside)


def within(spans: Spans, start: ArrayLike, end: ArrayLike) -> Spans:
    """The part inside windows that do not overlap, cut where windows meet: no piece lies in two of them."""
    return intersection(spans, Spans(np.asarray(start, np.int64), np.asarray(end, np.int64)))


def length(spans: Spans) -> int:
    """Total, in ns."""
    return int((spans.end - spans.start).sum())


def size_within(spans: Spans, start: ArrayLike, end: ArrayLike) -> Int64s:
    """For each window, how much of the set lies in it; windows may overlap."""
    before = np.concatenate([[0], np.cumsum(spans.end - spans.start)])
    return _up_to(spans, before, np.asarray(end, np.int64)) - _up_to(spans, before, np.asarray(start, np.int64))


def _up_to(spans: Spans, before: Int64s, moment: Int64s) -> Int64s:
    """How much of the set lies before each moment."""
    if not len(spans.start):
        return np.zeros(len(moment), np.int64)
    begun = np.searchsorted(spans.start, moment, side="right")
    inside = np.minimum(moment, spans.end[np.maximum(begun - 1, 0)]) - spans.start[np.maximum(begun - 1, 0)]
    return before[np.maximum(begun - 1, 0)] + np.where(begun > 0, inside, 0)
