"""Which rank the others wait for: ranks compared at each exchange that they all take part in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["Arrivals", "arrivals_of", "blame_ns"]

LARGEST_SKEW_NS = 50_000
"""Exchanges end together: eight ranks of one machine within 3 µs (median of their ends). Clocks whose ends lie further
apart than this are those of different machines."""
SPREADS = 4.0
"""Times that the ends of single exchanges differ by themselves: what is less may be chance, not a clock."""
SURELY_CLOCKS_NS = 1_000_000


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


def arrivals_of(ranks: Sequence[tuple[Timeline, int | None]]) -> Arrivals | None:
    """Of timelines, each with the device that counts (None: all of them).

    None for one rank, without exchanges, or where ranks did not make the same exchanges.
    """
    if len(ranks) < 2:
        return None
    matched = list(_matched([_exchanges(timeline, device) for timeline, device in ranks]))
    if not matched:
        return None
    apart, corrected = _clocks_apart(matched, len(ranks))
    waited, cost = np.zeros(len(ranks)), np.zeros(len(ranks))
    for which, start, _ in matched:
        arrival = start - apart[which][:, None]
        waited[which] += (arrival.max(axis=0) - arrival).sum(axis=1)
        cost[which] += blame_ns(arrival).sum(axis=1)
    return Arrivals(
        exchanges=sum(start.shape[1] for _, start, _ in matched),
        waited_ns=tuple(round(each) for each in waited),
        cost_ns=tuple(round(each) for each in cost),
        clock_corrected=corrected,
    )


UNKNOWN = -1
Group = tuple[str, int, str]
"""Name of the process group, its size, and the operation."""
Exchanges = dict[Group, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""By group and operation: begins and ends, on the trace's own clock."""


def _exchanges(timeline: Timeline, device: int | None) -> Exchanges:
    rows = timeline.rows(Kind.COMMUNICATION, device=device)
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    if len(timeline.steps):
        inside = (end > timeline.steps.start_ns[0]) & (start < timeline.steps.end_ns[-1])
        rows, start, end = rows[inside], start[inside], end[inside]
    groups = _groups(timeline)
    found: dict[Group, list[int]] = {}
    for position, row in enumerate(rows.tolist()):
        key = (*groups.get(row, ("", UNKNOWN)), _operation(timeline.names[timeline.name[row]]))
        found.setdefault(key, []).append(position)
    origin = timeline.origin_ns
    return {key: (start[which] + origin, end[which] + origin) for key, which in found.items()}


def _groups(timeline: Timeline) -> dict[int, tuple[str, int]]:
    """Name and size, by row."""
    told = timeline.collectives
    if told is None:
        return {}
    return dict(zip(told.row.tolist(), zip(told.group, told.group_size.tolist(), strict=True), strict=True))


def _operation(name: str) -> str:
    """The kind of exchange in a kernel's name; protocol and algorithm may differ between ranks."""
    lowered = name[:256].lower().replace("_", "")
    return next((operation for operation in OPERATIONS if operation in lowered), "exchange")


def _matched(found: list[Exchanges]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]]:
    """Per group and operation: which ranks, and their begins and ends, a row a rank.

    Ranks belong together where they made it (nearly) as often; the last of them are compared, since profilers of
    different ranks begin at different moments and end together. Where more ranks made an exchange than its group holds,
    there are several groups of it, and who was in which is not told.
    """
    for key in sorted({key for each in found for key in each}):
        counts = np.array([len(each[key][0]) if key in each else 0 for each in found])
        ranks = np.flatnonzero(counts)
        shared = int(counts[ranks].min())
        more_groups = key[1] != UNKNOWN and len(ranks) > key[1]
        if len(ranks) < 2 or more_groups or counts.max() > 1.05 * shared + 1:
            continue
        start = np.stack([found[rank][key][0][-shared:] for rank in ranks])
        end = np.stack([found[rank][key][1][-shared:] for rank in ranks])
        yield ranks, start, end


def _clocks_apart(
    matched: list[tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]], count: int
) -> tuple[NDArray[np.int64], bool]:
    """How far each rank's clock is ahead, by the exchanges' common ends; zeros where that is no more than usual."""
    widest = max(matched, key=lambda each: (len(each[0]), each[1].shape[1]))
    ranks, _, end = widest
    lead = end - np.median(end, axis=0)
    apart = np.zeros(count, np.int64)
    usual_ns = np.median(lead, axis=1)
    apart[ranks] = usual_ns.astype(np.int64)
    spread_ns = np.median(np.abs(lead - usual_ns[:, None]), axis=1)
    bound_ns = np.minimum(np.maximum(LARGEST_SKEW_NS, SPREADS * spread_ns), SURELY_CLOCKS_NS)
    corrected = bool((np.abs(usual_ns) > bound_ns).any())
    return (apart if corrected else np.zeros(count, np.int64)), corrected


OPERATIONS = ("allreduce", "allgather", "reducescatter", "broadcast", "sendrecv", "alltoall", "reduce", "send", "recv")


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
