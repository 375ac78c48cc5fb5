"""Gives every instant of every step of a timeline exactly one cause. Sets of time are cut from one another in order, so
what remains is disjoint and whatever nothing claims is `other`: the causes sum to the step by construction."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.breakdown import IDLE_CAUSES, Breakdown
from nearpeak.diagnose.intervals import NOTHING, Spans, covered, intersection, length, minus, size_within, union, within
from nearpeak.trace.kinds import copy_route, is_blocking_copy, is_pageable
from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["NEVER", "Attribution", "attribute", "launch_ends_ns", "launches_of", "leading_lanes"]

Int64s = NDArray[np.int64]
Rows = NDArray[np.intp]
DEVICE_WORK = (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY)
SETS_MEMORY = ("memset", "fillbuffer")


def _no_rows() -> Rows:
    return np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The sets of time of one device (None: of the host alone) over the steps of a timeline."""

    device: int | None
    compute: Spans
    communication: Spans
    """Exposed: while nothing computes."""
    copies: dict[str, Spans]
    """Exposed, by route; `pageable` follows the route of copies that go through memory that is not pinned."""
    idle: dict[str, Spans]
    steps: tuple[Breakdown, ...]
    """One a step."""
    overlapped_ns: int = 0
    """Communication that ran while something computed."""
    whole_communication_ns: int = 0
    """Hidden or not, over all steps."""
    work: Rows = field(default_factory=_no_rows)
    """Rows of what ran on the device, in the steps or not."""
    calls: Rows = field(default_factory=_no_rows)
    """For each of them the row of the call that launched it; -1 where the trace does not show it."""


def attribute(timeline: Timeline, device: int | None = None) -> Attribution:
    """Of one device, by default of the only or first that works; of the host where the trace shows no device work."""
    devices = timeline.busy_devices()
    if device is None and not devices:
        return _of_host(timeline)
    return _of_device(timeline, devices[0] if device is None else device)


def _of_device(timeline: Timeline, device: int) -> Attribution:
    window = timeline.steps.start_ns, timeline.steps.end_ns
    rows = timeline.rows(*DEVICE_WORK, device=device)
    kind, calls = timeline.kind[rows], launches_of(timeline, rows)
    all_compute = _time_of(timeline, rows[kind == Kind.KERNEL], window)
    exchange = _time_of(timeline, rows[kind == Kind.COMMUNICATION], window)
    communication = minus(exchange, all_compute)
    copies, busy = _copies(timeline, rows[kind == Kind.COPY], union(all_compute, communication), window)
    idle = _idle(timeline, rows, calls, busy, window)
    parts = all_compute, communication, copies, idle
    return Attribution(
        device=device,
        compute=all_compute,
        communication=communication,
        copies=copies,
        idle=idle,
        steps=_per_step(timeline, *parts),
        overlapped_ns=length(exchange) - length(communication),
        whole_communication_ns=length(exchange),
        work=rows,
        calls=calls,
    )


def _of_host(timeline: Timeline) -> Attribution:
    """Operators compute; what a loader does is waiting, whatever it runs."""
    window = timeline.steps.start_ns, timeline.steps.end_ns
    waiting = _time_of(timeline, timeline.rows(Kind.INPUT), window)
    compute = minus(_time_of(timeline, timeline.rows(Kind.OP), window), waiting)
    rest = minus(_window(window), union(compute, waiting))
    idle = {"input": waiting, "other": rest}
    steps = _per_step(timeline, compute, NOTHING, {}, idle)
    return Attribution(device=None, compute=compute, communication=NOTHING, copies={}, idle=idle, steps=steps)


def _time_of(timeline: Timeline, rows: Rows, window: tuple[Int64s, Int64s]) -> Spans:
    """What events cover of the steps."""
    start = timeline.start_ns[rows]
    return within(covered(start, start + timeline.duration_ns[rows]), *window)


def _window(window: tuple[Int64s, Int64s]) -> Spans:
    return Spans(*window)


def _copies(
    timeline: Timeline, rows: Rows, busy: Spans, window: tuple[Int64s, Int64s]
) -> tuple[dict[str, Spans], Spans]:
    """Exposed copies by route, each cut from those before it: host to device first; and all that is busy with them."""
    if not len(rows):
        return {}, busy
    names, name_of = np.unique(timeline.name[rows], return_inverse=True)
    routes = np.array([_route(timeline.names[name]) for name in names])
    found: dict[str, Spans] = {}
    for route in sorted(set(routes.tolist()), key=_copy_order):
        found[route] = minus(_time_of(timeline, rows[(routes == route)[name_of]], window), busy)
        busy = union(busy, found[route])
    return found, busy


def _route(name: str) -> str:
    return copy_route(name) + (" pageable" if is_pageable(name) else "")


def _copy_order(route: str) -> tuple[int, str]:
    """Between host and device first; within a device last: those belong to its own work."""
    return (0 if "H" in route else 1, route)


def _idle(timeline: Timeline, rows: Rows, calls: Rows, busy: Spans, window: tuple[Int64s, Int64s]) -> dict[str, Spans]:
    """What is left, by cause: what the host was seen doing claims its part of a gap, how the gap ended the rest."""
    gaps = within(minus(_window(window), busy), *window)
    host = leading_lanes(timeline)
    causes: dict[str, Spans] = {}
    rest = gaps
    for cause, kind in (("profiler", Kind.PROFILER), ("input", Kind.INPUT), ("sync", Kind.SYNC)):
        chosen = timeline.rows(kind)
        if kind != Kind.PROFILER:
            chosen = chosen[host[timeline.lane[chosen]]]
        spent = _time_of(timeline, chosen, window)
        if kind == Kind.SYNC:
            spent = union(spent, within(_after_blocking_copies(timeline, rows, calls), *window))
        causes[cause] = intersection(rest, spent)
        rest = minus(rest, causes[cause])
    ending = _causes_of_gaps(timeline, rows, calls, gaps, window)
    gap_of = np.searchsorted(gaps.start, rest.start, side="right") - 1
    for cause in ("host_work", "launch", "other"):
        chosen = np.array([name == cause for name in GAP_CAUSES])[ending[gap_of]]
        causes[cause] = Spans(rest.start[chosen], rest.end[chosen])
    return causes


def _after_blocking_copies(timeline: Timeline, rows: Rows, calls: Rows) -> Spans:
    """From the end of copies on the device until the calls that waited for them returned."""
    blocking = np.zeros(len(timeline.names), np.bool_)
    waited = calls >= 0
    for name in np.flatnonzero(np.bincount(timeline.name[calls[waited]], minlength=1)):
        blocking[name] = is_blocking_copy(timeline.names[name])
    waited[waited] = blocking[timeline.name[calls[waited]]]
    rows, calls = rows[waited], calls[waited]
    return covered(
        timeline.start_ns[rows] + timeline.duration_ns[rows], timeline.start_ns[calls] + timeline.duration_ns[calls]
    )


def leading_lanes(timeline: Timeline) -> NDArray[np.bool_]:
    """Threads that hand work to the device or hold the steps: others may wait as long as they like."""
    lanes = np.zeros(len(timeline.lanes), bool)
    lanes[timeline.used(timeline.lane, timeline.kind == Kind.LAUNCH)] = True
    if not lanes.any():  # calls were not recorded: any thread may be the one
        return np.ones(len(timeline.lanes), bool)
    waiting = timeline.used(timeline.lane, timeline.kind == Kind.INPUT)
    if not lanes[waiting].any():
        lanes[waiting] = True
    return lanes


GAP_CAUSES = ("host_work", "launch", "other")


def _causes_of_gaps(
    timeline: Timeline, rows: Rows, calls: Rows, gaps: Spans, window: tuple[Int64s, Int64s]
) -> NDArray[np.int64]:
    """For each gap a position in `GAP_CAUSES`.

    At a step's begin or end it is host work. Between, what counts is the work that ends the gap: a kernel that was
    launched only after the gap had begun makes it launch-bound; a copy or set that came late is the host's doing as
    well; work that had been launched in time waited for something that the trace does not show.
    """
    step_start, step_end = window
    opens_step = _is_one_of(step_start, gaps.start)
    closes_step = _is_one_of(step_end, gaps.end)
    if not len(rows):
        return np.zeros(len(gaps.start), np.int64)
    next_row = np.minimum(np.searchsorted(timeline.start_ns[rows], gaps.end, side="left"), len(rows) - 1)
    late = launch_ends_ns(timeline, calls[next_row]) > gaps.start
    is_kernel = _is_kernel(timeline, rows[next_row])
    inner = np.where(late & is_kernel, 1, np.where(late, 0, 2))
    return np.where(opens_step | closes_step, 0, inner)


def _is_one_of(moments: Int64s, moment: Int64s) -> NDArray[np.bool_]:
    """Of each moment, whether it is among `moments`, which ascend."""
    return moments[np.minimum(np.searchsorted(moments, moment), len(moments) - 1)] == moment


def _is_kernel(timeline: Timeline, rows: Rows) -> NDArray[np.bool_]:
    """Not a copy, nor the setting of memory."""
    is_set = np.zeros(len(timeline.names), np.bool_)
    for name in np.flatnonzero(np.bincount(timeline.name[rows], minlength=1)):
        is_set[name] = timeline.names[name].lower().startswith(SETS_MEMORY)
    return (timeline.kind[rows] != Kind.COPY) & ~is_set[timeline.name[rows]]


NEVER = int(np.iinfo(np.int64).min)
"""As a moment: before everything."""


def launch_ends_ns(timeline: Timeline, calls: Rows) -> Int64s:
    """When calls had ended; the smallest number where there is none."""
    return np.where(calls >= 0, timeline.start_ns[calls] + timeline.duration_ns[calls], NEVER)


def launches_of(timeline: Timeline, rows: Rows) -> Rows:
    """The row of the call that caused each row; -1 where the trace does not show it."""
    calls = np.flatnonzero((timeline.kind == Kind.LAUNCH) & (timeline.correlation >= 0))
    if not len(calls):
        return np.full(len(rows), -1, np.intp)
    order = np.argsort(timeline.correlation[calls], kind="stable")
    known = timeline.correlation[calls][order]
    wanted = timeline.correlation[rows]
    found = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[found] == wanted, calls[order[found]], -1)


def _per_step(
    timeline: Timeline, compute: Spans, communication: Spans, copies: dict[str, Spans], idle: dict[str, Spans]
) -> tuple[Breakdown, ...]:
    window = timeline.steps.start_ns, timeline.steps.end_ns
    window_ns = window[1] - window[0]
    compute_ns, communication_ns = size_within(compute, *window), size_within(communication, *window)
    copy_ns = sum((size_within(each, *window) for each in copies.values()), np.zeros_like(window_ns))
    idle_ns = {cause: size_within(idle.get(cause, NOTHING), *window) for cause in IDLE_CAUSES}
    return tuple(
        Breakdown(
            window_ns=int(window_ns[step]),
            compute_ns=int(compute_ns[step]),
            communication_ns=int(communication_ns[step]),
            copy_ns=int(copy_ns[step]),
            idle_ns={cause: int(times[step]) for cause, times in idle_ns.items()},
        )
        for step in range(len(window_ns))
    )
