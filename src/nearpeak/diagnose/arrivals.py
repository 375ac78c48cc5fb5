"""Which rank the others wait for: ranks compared at each exchange that they all take part in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["Arrivals", "arrivals_of", "blame_ns"]

LARGEST_SKEW_NS = 1_000_000
"""Exchanges end together; clocks of machines whose ends lie further apart than this (median) cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Of all ranks at the exchanges that they share."""

    exchanges: int
    waited_ns: tuple[int, ...]
    """By rank, as given: from its arrival to that of the last rank, over all exchanges."""
    cost_ns: tuple[int, ...]
    """By rank: how long all others together waited for it. Sums to the sum of `waited_ns`."""
    clock_corrected: bool
    """Whether clocks were brought together by the exchanges' common ends."""


def arrivals_of(timelines: Sequence[Timeline]) -> Arrivals | None:
    """None for one rank, without exchanges, or where ranks did not make the same exchanges."""
    found = [_exchanges(timeline) for timeline in timelines]
    shared = min((len(start) for start, _ in found), default=0)
    if len(timelines) < 2 or not shared or any(len(start) > 1.05 * shared + 1 for start, _ in found):
        return None
    start = np.stack([start[-shared:] for start, _ in found])
    end = np.stack([end[-shared:] for _, end in found])
    apart = np.median(end - np.median(end, axis=0), axis=1)
    corrected = bool(np.abs(apart).max() > LARGEST_SKEW_NS)
    if corrected:
        start = start - apart[:, None].astype(np.int64)
    cost = blame_ns(start)
    return Arrivals(
        exchanges=shared,
        waited_ns=tuple(int(each) for each in (start.max(axis=0) - start).sum(axis=1)),
        cost_ns=tuple(round(each) for each in cost.sum(axis=1)),
        clock_corrected=corrected,
    )


def _exchanges(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begins and ends on the trace's own clock, within the steps."""
    rows = timeline.rows(Kind.COMMUNICATION)
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    if len(timeline.steps):
        inside = (end > timeline.steps.start_ns[0]) & (start < timeline.steps.end_ns[-1])
        start, end = start[inside], end[inside]
    return start + timeline.origin_ns, end + timeline.origin_ns


def blame_ns(arrival: NDArray[np.int64]) -> NDArray[np.float64]:
    """How long others waited for each rank (rows) at each exchange (columns).

    At each moment those who have arrived wait; the time that they lose is borne in equal parts by those who have not.
    """
    ranks = len(arrival)
    order = np.argsort(arrival, axis=0, kind="stable")
    gaps = np.diff(np.take_along_axis(arrival, order, axis=0), axis=0)
    waiting = np.arange(1, ranks)[:, None]
    borne = np.concatenate([np.zeros((1, arrival.shape[1])), np.cumsum(gaps * waiting / (ranks - waiting), axis=0)])
    blame = np.empty_like(borne)
    np.put_along_axis(blame, order, borne, axis=0)
    return blame
