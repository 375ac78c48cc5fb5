"""What the host was doing while the device waited for its work: the functions and ranges that fill the gaps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.attribution import Attribution
from nearpeak.diagnose.intervals import size_within
from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["host_places"]

MOST_PLACES = 5
SMALLEST_SHARE = 0.01
SHORTEST_SHARE = 1e-4
"""Shorter calls count as their caller's own time: there may be millions."""


def host_places(timeline: Timeline, attribution: Attribution) -> tuple[tuple[str, float], ...]:
    """Names by their own time (without what they call) within idle time of the cause host work; share of the steps."""
    gaps = attribution.idle.get("host_work")
    window_ns = sum(step.window_ns for step in attribution.steps)
    if gaps is None or not len(gaps.start) or not window_ns:
        return ()
    if (gaps.end - gaps.start).sum() < SMALLEST_SHARE * window_ns:
        return ()
    lane = _main_lane(timeline)
    rows = timeline.rows(Kind.PYTHON, Kind.OP, Kind.SPAN, Kind.CALL)
    rows = rows[timeline.lane[rows] == lane]
    within_ns = size_within(gaps, timeline.start_ns[rows], timeline.end_ns[rows])
    worth_telling = within_ns > SHORTEST_SHARE * window_ns
    rows, within_ns = rows[worth_telling], within_ns[worth_telling]
    own_ns = _own(timeline.start_ns[rows], timeline.end_ns[rows], within_ns)
    by_name = np.bincount(timeline.name[rows], weights=own_ns, minlength=1)
    longest = np.argsort(-by_name)[:MOST_PLACES]
    shares = [(timeline.names[name], float(by_name[name]) / window_ns) for name in longest if by_name[name] > 0]
    return tuple((name, share) for name, share in shares if share >= SMALLEST_SHARE)


def _main_lane(timeline: Timeline) -> int:
    """The thread that launches the most; steps are marked there."""
    rows = timeline.rows(Kind.LAUNCH)
    return int(np.bincount(timeline.lane[rows], minlength=1).argmax()) if len(rows) else -1


def _own(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], within_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each range's time without that of the ranges directly inside it; ranges come in order, longest first."""
    own = within_ns.copy()
    open_ends: list[tuple[int, int]] = []
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while open_ends and open_ends[-1][0] <= start:
            open_ends.pop()
        # A range may begin inside a call and outlive it (a step begins within the profiler's `step()`).
        around = next((outer for outer_end, outer in reversed(open_ends) if outer_end >= end), None)
        if around is not None:
            own[around] -= within_ns[row]
        open_ends.append((end, row))
    return own
