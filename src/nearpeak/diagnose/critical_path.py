"""What a step's length hangs on: the chain of work on host and device, each of which began when the one before ended.

It is walked from the end. On the device it goes back over work that stood ready in the queue to the one that the host
launched late, and there over to the host; on the host back to the last call that waited for the device, and there over
to the work that it waited for. Shortening what is not on the chain does not shorten the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.attribution import NEVER, Attribution, launch_ends_ns, leading_lanes
from nearpeak.diagnose.intervals import Spans, covered, intersection, length, minus, union, within
from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["critical_path"]

Int64s = NDArray[np.int64]


def critical_path(timeline: Timeline, attribution: Attribution) -> dict[str, float]:
    """Shares of the steps by what the chain was on: they sum to 1; empty where no device is seen, or no launch."""
    steps = timeline.steps
    if attribution.device is None or not len(steps) or not (attribution.calls >= 0).any():
        return {}
    window = Spans(steps.start_ns, steps.end_ns)
    queue = _queue(timeline, attribution)
    on_device = _on_device(queue, _waits(timeline, queue), int(steps.start_ns[0]), int(steps.end_ns[-1]))
    on_device = within(on_device, *window)
    on_host = minus(window, on_device)
    loading = timeline.kind == Kind.INPUT
    waiting = covered(timeline.start_ns[loading], timeline.end_ns[loading])
    input_ns = length(intersection(on_host, waiting))
    parts = {
        "compute": length(intersection(on_device, attribution.compute)),
        "communication": length(intersection(on_device, attribution.communication)),
        "copy": length(intersection(on_device, union(*attribution.copies.values()))),
        "input": input_ns,
        "host": length(on_host) - input_ns,
    }
    whole = length(window)
    parts["handover"] = whole - sum(parts.values())
    return {part: time_ns / whole for part, time_ns in parts.items()}


@dataclass(frozen=True, slots=True)
class _Queue:
    """Work of a device in order of begin."""

    start: Int64s
    end: Int64s
    launched: Int64s
    """When its launch had ended; of a copy whose call waits for it, when that call had begun."""
    returned: Int64s
    """When its call had ended."""
    chain: Int64s
    """The work before it at which the device last waited for the host."""


def _queue(timeline: Timeline, attribution: Attribution) -> _Queue:
    rows, calls = attribution.work, attribution.calls
    start = timeline.start_ns[rows]
    end = start + timeline.duration_ns[rows]
    returned = launch_ends_ns(timeline, calls)
    launched = np.where(returned >= end, timeline.start_ns[calls], returned)
    reach = np.maximum.accumulate(end)
    late = np.append(True, launched[1:] > reach[:-1])
    chain = np.maximum.accumulate(np.where(late, np.arange(len(rows)), 0))
    return _Queue(start, end, launched, returned, chain)


def _waits(timeline: Timeline, queue: _Queue) -> Spans:
    """Calls that wait for the device, sorted by end: those that are made to, on the threads that lead, and copies
    whose call returned only when they were done (as those from and to pageable memory do)."""
    rows = timeline.rows(Kind.SYNC)
    rows = rows[leading_lanes(timeline)[timeline.lane[rows]]]
    blocking = queue.returned >= queue.end
    start = np.concatenate([timeline.start_ns[rows], queue.start[blocking]])
    end = np.concatenate([timeline.end_ns[rows], queue.returned[blocking]])
    order = np.argsort(end, kind="stable")
    return Spans(start[order], end[order])


def _on_device(queue: _Queue, waits: Spans, first_ns: int, last_ns: int) -> Spans:
    """The parts of the chain that lie on the device."""
    by_end = np.argsort(queue.end, kind="stable")
    ends = queue.end[by_end]
    found: list[tuple[int, int]] = []
    moment = int(last_ns)
    work = _running_at(queue, moment)
    while moment > first_ns:
        if work is None:
            wait = int(np.searchsorted(waits.end, moment, side="right")) - 1
            if wait < 0:
                break
            moment = int(waits.end[wait])
            last = int(np.searchsorted(ends, moment, side="right")) - 1
            if last < 0 or ends[last] <= waits.start[wait]:  # it had nothing to wait for
                moment = min(moment - 1, int(waits.start[wait]))
                continue
            work = int(by_end[last])
        head = int(queue.chain[work])
        begin = min(int(max(queue.launched[head], first_ns)), int(queue.start[head]), moment - 1)
        found.append((begin, moment))
        moment, work = begin, None
    return covered([begin for begin, _ in found], [end for _, end in found])


def _running_at(queue: _Queue, moment: int) -> int | None:
    """The work that the device is at, if it is behind the host then: work that was launched is not done."""
    begun = int(np.searchsorted(queue.start, moment, side="left"))
    running = begun > 0 and queue.end[begun - 1] >= moment
    queued = begun < len(queue.start) and NEVER < queue.launched[begun] <= moment
    return begun - 1 if begun > 0 and (running or queued) else None
