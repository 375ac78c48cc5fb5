"""`DeviceClock`: CUDA's own times of a step, from events on the training stream, read when they are there anyway.

It never waits for the device. Steps are held back until their events have happened, at most a few dozen.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

from nearpeak.observe.steps import (
    BACKWARD_BEGINS,
    BACKWARD_ENDS,
    FORWARD_BEGINS,
    UPDATE_BEGINS,
    UPDATE_ENDS,
)
from nearpeak.observe.tally import Tally

__all__ = ["DeviceClock", "device_clock", "device_times", "read_memory"]

MOST_HELD = 64
"""Steps whose device times are waited for; beyond it the oldest goes without."""
MOST_MARKS = 400
"""A step: one of hundreds of micro-batches is told by its first ones alone, so not at all."""

Mark = tuple[int, Any]


def device_clock(torch: Any, optimizer: Any) -> DeviceClock | None:
    """For what an optimizer updates; None where that is not on a CUDA device."""
    devices = {each.device.type for group in optimizer.param_groups for each in group["params"]}
    return DeviceClock(torch.cuda) if "cuda" in devices else None


def read_memory(torch: Any, tally: Tally) -> None:
    """What torch's allocator holds now, and the most that it ever did."""
    stats = torch.cuda.memory_stats_as_nested_dict()
    if stats:
        tally.allocated_bytes = stats["allocated_bytes"]["all"]["current"]
        tally.peak_bytes = stats["allocated_bytes"]["all"]["peak"]
        tally.reserved_bytes = stats["reserved_bytes"]["all"]["current"]


class DeviceClock:
    """Of the stream that is current when the loop marks a boundary."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._pool: list[Any] = []
        self._marks: list[Mark] = []
        self._starved = 0
        self._held: deque[tuple[Tally, list[Mark], Mark | None]] = deque()
        self._last: Mark | None = None

    def mark(self, boundary: int) -> None:
        """Record an event here, and see whether the device has run dry. Nothing while a graph is captured."""
        if len(self._marks) >= MOST_MARKS or self._cuda.is_current_stream_capturing():
            return
        self._starved += bool(self._cuda.current_stream().query())
        event = self._pool.pop() if self._pool else self._cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((boundary, event))

    def close(self, tally: Tally) -> list[Tally]:
        """Take a step; give back those whose events have happened."""
        marks, self._marks = self._marks, []
        if marks:
            tally.starved = self._starved, len(marks)
        self._starved = 0
        self._held.append((tally, marks, self._last))
        self._last = marks[-1] if marks else None
        ready: list[Tally] = []
        while self._held and (len(self._held) > MOST_HELD or _happened(self._held[0][1])):
            ready.append(self._read(*self._held.popleft()))
        return ready

    def rest(self) -> list[Tally]:
        """At the end: all that are held, with their times where they are known."""
        return [self._read(*self._held.popleft()) for _ in range(len(self._held))]

    def _read(self, tally: Tally, marks: list[Mark], before: Mark | None) -> Tally:
        if marks and _happened(marks) and len(marks) < MOST_MARKS:
            tally.device_ms = device_times(marks, before)
        # The last one is the begin of the next step's gap, so it is not used again.
        self._pool += [event for _, event in marks[:-1]]
        return tally


def _happened(marks: list[Mark]) -> bool:
    return not marks or bool(marks[-1][1].query())


def device_times(marks: list[Mark], before: Mark | None) -> dict[str, float]:
    """By the names of the columns; a phase that was not seen from both sides is left out."""
    spans = {
        (FORWARD_BEGINS, BACKWARD_BEGINS): "forward",
        (BACKWARD_BEGINS, BACKWARD_ENDS): "backward",
        (UPDATE_BEGINS, UPDATE_ENDS): "optimizer",
    }
    times: dict[str, float] = {}
    for (first, begin), (second, end) in pairwise(marks):
        name = spans.get((first, second))
        if name is not None:
            times[name] = times.get(name, 0.0) + begin.elapsed_time(end)
    if before is not None:
        times["gap"] = before[1].elapsed_time(marks[0][1])
    return times
