"""Busy and idle time from the first kernel to the last, as analysers of traces usually give it.

It leaves out what lies before the first kernel and behind the last, where steps often wait; `breakdown` does not. It is
here to compare with those tools.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.intervals import Spans, covered, intersection, length
from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["KernelSpan", "kernel_span"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpan:
    """Times of one device. Idle, compute and non-compute sum to the span."""

    span_ns: int
    idle_ns: int
    compute_ns: int
    """Something computed, whatever else ran."""
    communication_ns: int
    overlap_ns: int
    """Communication while something computed."""

    @property
    def non_compute_ns(self) -> int:
        return self.span_ns - self.idle_ns - self.compute_ns

    @property
    def overlap_share(self) -> float | None:
        """Of the communication; None without any."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None


def kernel_span(timeline: Timeline, rows: NDArray[np.intp]) -> KernelSpan | None:
    """Of events on one device; memory sets count as neither computing nor idle here. None without events."""
    busy = _time_of(timeline, rows)
    if not len(busy.start):
        return None
    sets = np.array([name.lower().startswith(("memset", "hipmemset")) for name in timeline.names] or [False], bool)
    is_compute = (timeline.kind[rows] == Kind.KERNEL) & ~sets[timeline.name[rows]]
    compute = _time_of(timeline, rows[is_compute])
    communication = _time_of(timeline, rows[timeline.kind[rows] == Kind.COMMUNICATION])
    span_ns = int(busy.end[-1] - busy.start[0])
    return KernelSpan(
        span_ns=span_ns,
        idle_ns=span_ns - length(busy),
        compute_ns=length(compute),
        communication_ns=length(communication),
        overlap_ns=length(intersection(communication, compute)),
    )


def _time_of(timeline: Timeline, rows: NDArray[np.intp]) -> Spans:
    start_ns = timeline.start_ns[rows]
    return covered(start_ns, start_ns + timeline.duration_ns[rows])
