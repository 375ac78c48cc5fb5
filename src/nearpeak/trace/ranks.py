"""Which rank each timeline of a run is, and which of several recordings of one rank is judged.

A rank that the trace gives is taken; one that only the file's name speaks of is a guess, which gives way where two
files of the same time bear it: `gpu-12_901.json` and `gpu-12_902.json` are two processes of one machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearpeak.trace.timeline import Timeline

__all__ = ["in_order_of_rank", "rank_in_name", "with_rank_of_name"]

RANK = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"rank[-_ ]?(\d{1,6})(?!\d)",
        r"(?:worker|node\d+_gpu|proc(?:ess)?)[-_ ]?(\d{1,6})(?!\d)",
        r"gpu[-_ ]?(\d{1,6})(?!\d)",
        r"^(\d{1,4})(?=\.|_)(?!_\d\d?_\d\d?(?!\d))",
    )
)
"""The surest first: `gpu4_rank3` is of rank 3. A number alone at the beginning counts, a date does not."""
WORLD = re.compile(r"(?:(?<![a-z])of|world(?:_?size)?|ws)[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
FOLDER = re.compile(r"(?:rank|worker|gpu|proc(?:ess)?)[-_ ]?\d{1,6}", re.IGNORECASE)
CYCLE = re.compile(r"\d{10,}|(?<=step)[-_ ]?\d+|(?<=cycle)[-_ ]?\d+|(?<=epoch)[-_ ]?\d+|(?<=iteration)[-_ ]?\d+", re.I)
"""In which the names of one process's recordings differ: the time, or how far the run had come. Other numbers may be
those of machines, whose processes have the same number in their containers."""
MOST_TOLD = 4
"""Files whose rank is not known, for which it is said which rank each counts as; of more it is said once."""
MANY = "its rank is not known; ranks are counted by the order of files"
SAME_TIME = 0.05
"""Two recordings that share more than this part of the shorter one's time are of two processes."""


def rank_in_name(name: str) -> tuple[int | None, int | None]:
    """Rank and world size that a file's name speaks of: ``rank3of8.json``, ``worker0_step_12.pt.trace.json``."""
    found = next((match for pattern in RANK if (match := pattern.search(name))), None)
    if found is None:
        return None, None
    world = WORLD.match(name, found.end()) or WORLD.search(name)
    return int(found.group(1)), int(world.group(1)) if world else None


def with_rank_of_name(timeline: Timeline, path: Path) -> Timeline:
    """The same with the rank that the file's name speaks of, where the trace does not give its own."""
    rank, world = rank_in_name(path.name)
    if rank is None and FOLDER.fullmatch(path.parent.name):
        rank, world = rank_in_name(path.parent.name)
    if timeline.rank is not None or rank is None:
        return timeline
    note = f"the trace does not give its rank; {rank} was taken from the file's name"
    return replace(timeline, rank=rank, world_size=timeline.world_size or world, rank_guessed=True).with_notes([note])


def in_order_of_rank(timelines: Sequence[Timeline]) -> list[Timeline]:
    """One timeline a rank, ascending. Copies and earlier recordings of the same process are left out; processes whose
    rank is not known, or borne by others at the same time, get the numbers that are free. All of it is noted."""
    if len(timelines) < 2:
        return list(timelines)
    by_rank: dict[int, Timeline] = {}
    unknown: list[Timeline] = []
    for process in sorted(_processes(_without_copies(timelines)), key=lambda each: each.rank_guessed):
        rank = process.rank
        if rank is None or rank in by_rank:
            unknown.append(process)
        else:
            by_rank[rank] = process
    shared = {process.rank for process in unknown if process.rank is not None and process.rank_guessed}
    unknown = [by_rank.pop(rank) for rank in sorted(shared) if by_rank[rank].rank_guessed] + unknown
    free = (number for number in range(len(timelines) + max(by_rank, default=0) + 1) if number not in by_rank)
    for process in sorted(unknown, key=lambda each: _by_numbers(each.source)):
        number = next(free)
        why = _why(process, number) if len(unknown) <= MOST_TOLD else MANY
        by_rank[number] = replace(process, rank=number).with_notes([why])
    return [by_rank[rank] for rank in sorted(by_rank)]


def _why(process: Timeline, number: int) -> str:
    if process.rank is None:
        return f"its rank is not given; it counts as {number}, by the order of files"
    return f"another file of the same time is of rank {process.rank}, too; it counts as {number}, by the order of files"


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """As people sort: ``part2`` before ``part10``."""
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _without_copies(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Files of the same events, such as a packed one beside the plain one, count once."""
    kept: list[Timeline] = []
    for timeline in timelines:
        twin = next((at for at, other in enumerate(kept) if _is_copy(timeline, other)), None)
        if twin is None:
            kept.append(timeline)
        else:
            kept[twin] = kept[twin].with_notes([f"{timeline.source} holds the same events and is left out"])
    return kept


def _is_copy(one: Timeline, other: Timeline) -> bool:
    ranks = {one.rank, other.rank} - {None}
    return (
        len(ranks) < 2
        and one.source != other.source  # processes of one file are no copies of one another
        and one.origin_ns == other.origin_ns
        and np.array_equal(one.start_ns, other.start_ns)
        and np.array_equal(one.duration_ns, other.duration_ns)
    )


def _processes(timelines: Sequence[Timeline]) -> Iterator[Timeline]:
    """One recording of each process: profilers write a file a cycle, and the last is judged."""
    groups: list[list[Timeline]] = []
    for timeline in timelines:
        group = next((each for each in groups if all(_is_earlier_or_later(timeline, other) for other in each)), None)
        if group is None:
            groups.append([timeline])
        else:
            group.append(timeline)
    for group in groups:
        last = max(group, key=lambda each: each.origin_ns)
        told = f"its process was recorded {len(group)} times, one after the other; the last is judged"
        yield last.with_notes([told] if len(group) > 1 else [])


def _is_earlier_or_later(one: Timeline, other: Timeline) -> bool:
    """Whether both are recordings of one process, made one after the other."""
    if _overlap(one, other) > SAME_TIME:
        return False
    if one.rank is not None or other.rank is not None:
        guessed = one.rank_guessed or other.rank_guessed
        return one.rank == other.rank and (not guessed or one.process == other.process)
    alike = CYCLE.sub("#", one.source) == CYCLE.sub("#", other.source)
    return alike and one.process is not None and one.process == other.process


def _overlap(one: Timeline, other: Timeline) -> float:
    """The part of the shorter one's time that both share."""
    (first, end), (other_first, other_end) = _span(one), _span(other)
    shorter = min(end - first, other_end - other_first)
    shared = min(end, other_end) - max(first, other_first)
    return max(0.0, shared / shorter) if shorter > 0 else float(shared >= 0)


def _span(timeline: Timeline) -> tuple[int, int]:
    if not len(timeline):
        return timeline.origin_ns, timeline.origin_ns
    return timeline.origin_ns + int(timeline.start_ns[0]), timeline.origin_ns + int(timeline.end_ns.max())
