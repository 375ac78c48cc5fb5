"""Several processes in one file, as tools write that join the traces of a run's ranks: told apart where that is sure.

A stream belongs to the process whose calls launched its work. Processes number their calls by themselves, so the same
number may be of several: where it is, nobody can say whose work it was, and the file stays one timeline that says so.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.steps import find_steps
from nearpeak.trace.timeline import Collectives, Kind, Timeline

__all__ = ["split_processes"]

MINE, NOT_MINE = 0.9, 0.1
"""Of a stream's work, the part whose launches must be found in its process, and may be found in another."""
RANK = re.compile(r"\brank[ _:-]*(\d{1,6})\b", re.IGNORECASE)
DEVICE_WORK = (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY)
Owners = dict[int, str]
"""Lane → process."""


def split_processes(timeline: Timeline) -> list[Timeline]:
    """One timeline a process that launched work; the same as it is where they cannot be told apart."""
    launching = timeline.used(timeline.lane, timeline.kind == Kind.LAUNCH).tolist()
    processes = list(dict.fromkeys(timeline.lanes[lane].process for lane in launching))
    if len(processes) < 2:
        return [timeline]
    owners = _owners(timeline, processes)
    if owners is None:
        note = f"it holds {len(processes)} processes whose work on devices cannot be told apart: they are judged as one"
        return [timeline.with_notes([note])]
    ranks = [_rank(process) for process in processes]
    told = len(set(ranks)) == len(ranks) and None not in ranks
    note = f"it holds {len(processes)} processes, told apart by which of them launched a stream's work"
    timeline = timeline.with_notes([note])
    return [
        _part(timeline, process, owners, rank if told else None) for process, rank in zip(processes, ranks, strict=True)
    ]


def _owners(timeline: Timeline, processes: list[str]) -> Owners | None:
    """None where a stream's work may be of several processes, or of none."""
    owners: Owners = {number: lane.process for number, lane in enumerate(timeline.lanes) if lane.process in processes}
    work = timeline.rows(*DEVICE_WORK)
    for lane in np.unique(timeline.lane[work]).tolist():
        rows = work[timeline.lane[work] == lane]
        found = {process: _share_launched(timeline, rows, process) for process in processes}
        first, second = sorted(found.values())[-1:-3:-1]
        if first < MINE or second > NOT_MINE:
            return None
        owners[lane] = max(found, key=lambda process: found[process])
    return owners


def _share_launched(timeline: Timeline, rows: NDArray[np.intp], process: str) -> float:
    """Of this work, how much was launched by calls of this process."""
    is_its = np.array([lane.process == process for lane in timeline.lanes])
    calls = timeline.rows(Kind.LAUNCH)
    calls = calls[is_its[timeline.lane[calls]] & (timeline.correlation[calls] >= 0)]
    return float(np.isin(timeline.correlation[rows], timeline.correlation[calls]).mean())


def _rank(process: str) -> int | None:
    """Where the tool that joined them wrote it into the process's name."""
    found = RANK.search(process)
    return int(found.group(1)) if found else None


def _part(timeline: Timeline, process: str, owners: Owners, rank: int | None) -> Timeline:
    """Its own lanes, and those that are no process's, such as the profiler's."""
    is_kept = np.array([owners.get(lane, process) == process for lane in range(len(timeline.lanes))])
    rows = np.flatnonzero(is_kept[timeline.lane])
    part = replace(
        timeline,
        start_ns=timeline.start_ns[rows],
        duration_ns=timeline.duration_ns[rows],
        kind=timeline.kind[rows],
        lane=timeline.lane[rows],
        name=timeline.name[rows],
        correlation=timeline.correlation[rows],
        n_bytes=timeline.n_bytes[rows],
        collectives=_kept(timeline.collectives, rows),
        process=process,
        rank=rank,
        rank_guessed=False,
    )
    return find_steps(part)


def _kept(collectives: Collectives | None, rows: NDArray[np.intp]) -> Collectives | None:
    """The entries of these rows, by their new numbers."""
    if collectives is None:
        return None
    at = np.searchsorted(rows, collectives.row)
    kept = np.flatnonzero((at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == collectives.row))
    return Collectives(
        row=at[kept].astype(np.int64),
        n_bytes=collectives.n_bytes[kept],
        group_size=collectives.group_size[kept],
        operation=tuple(collectives.operation[each] for each in kept),
        group=tuple(collectives.group[each] for each in kept),
    )
