"""Where steps begin and end: as the trace marks them, else as the program's habits show, saying so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.kinds import step_number
from nearpeak.trace.repeats import repeated_steps
from nearpeak.trace.timeline import Kind, Steps, Timeline

__all__ = ["find_steps", "with_some_steps"]

FEWEST_REPEATS = 2
DEVICE_WORK = (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY)


def find_steps(timeline: Timeline) -> Timeline:
    """The timeline with its steps."""
    marked = _marked(timeline)
    if marked is not None:
        return replace(timeline, steps=marked)
    steps = _between_updates(timeline) or repeated_steps(timeline) or _whole(timeline)
    if steps is None:
        return timeline.with_notes(["the trace holds no event: there is no step to judge"])
    return replace(timeline, steps=steps)


def with_some_steps(timeline: Timeline) -> Timeline:
    """The same; where no range told its steps, with those that repeat, or with the time in which devices worked."""
    if len(timeline.steps) or not len(timeline):
        return timeline
    return replace(timeline, steps=repeated_steps(timeline) or _whole(timeline, of_devices=True) or timeline.steps)


def _marked(timeline: Timeline) -> Steps | None:
    """Ranges such as `ProfilerStep#12` on the host."""
    numbers = [step_number(name) for name in timeline.names]
    is_step = np.array([number is not None for number in numbers], bool)
    on_host = timeline.kind > Kind.DEVICE_SPAN
    rows = np.flatnonzero(is_step[timeline.name] & on_host) if len(is_step) else np.zeros(0, np.intp)
    rows = rows[timeline.duration_ns[rows] > 0]
    if not len(rows):
        return None
    rows = rows[timeline.lane[rows] == np.bincount(timeline.lane[rows]).argmax()]
    number = np.array([numbers[name] for name in timeline.name[rows]], np.int64)
    return _disjoint(number, timeline.start_ns[rows], timeline.end_ns[rows], None)


def _disjoint(
    number: NDArray[np.int64], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], inferred: str | None
) -> Steps:
    """Steps in order, each cut where the next begins; what lies within another step is none."""
    end_ns = np.minimum(end_ns, np.append(start_ns[1:], end_ns[-1:]))
    keep = end_ns > start_ns
    return Steps(number=number[keep], start_ns=start_ns[keep], end_ns=end_ns[keep], inferred=inferred)


def _between_updates(timeline: Timeline) -> Steps | None:
    """From the end of an optimizer's update to the end of the next."""
    is_update = np.array([name.startswith("Optimizer.step#") for name in timeline.names], bool)
    if not is_update.any():
        return None
    rows = np.flatnonzero(is_update[timeline.name] & (timeline.kind > Kind.DEVICE_SPAN))
    ends_ns = _last_of_bursts(timeline.start_ns[rows], timeline.end_ns[rows])
    if len(ends_ns) <= FEWEST_REPEATS:
        return None
    how = "a step is taken to last from the end of an optimizer's update to the end of the next"
    return _disjoint(np.arange(len(ends_ns) - 1), ends_ns[:-1], ends_ns[1:], how)


def _last_of_bursts(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Several optimizers update one after the other: of updates close together, the end of the last."""
    gaps_ns = start_ns[1:] - end_ns[:-1]
    if not len(gaps_ns):
        return end_ns
    return end_ns[np.append(gaps_ns > gaps_ns.max() / 10, True)]


def _whole(timeline: Timeline, *, of_devices: bool = False) -> Steps | None:
    """The whole trace as one step, or as much of it as devices worked in, if any did."""
    rows = timeline.rows(*DEVICE_WORK) if of_devices else np.zeros(0, np.intp)
    on_devices = len(rows) > 0
    rows = rows if on_devices else np.flatnonzero(timeline.kind != Kind.OTHER)
    if not len(rows):
        return None
    start_ns, end_ns = timeline.start_ns[rows].min(), timeline.end_ns[rows].max()
    if end_ns <= start_ns:
        return None
    how = "the whole trace, from its first event to its last, counts as one"
    if on_devices:
        how = "everything from the first to the last work on a device counts as one"
    return Steps(number=np.array([0]), start_ns=np.array([start_ns]), end_ns=np.array([end_ns]), inferred=how)
