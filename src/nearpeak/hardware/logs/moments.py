"""When each part of a log was written: times that it states, put in order, and times that have to be assumed."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from statistics import median

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.parts import LogEvent, Parts
from nearpeak.hardware.logs.times import NS

__all__ = ["order"]

MONITOR_PERIOD_NS = NS
"""dmon and pmon print once a second unless they are told otherwise."""
BACK_NS = 2 * NS
"""A clock that goes back by less is only less exact: `-q` states whole seconds."""
GAP_PERIODS = 10
"""A pause of so many usual periods is a gap: the tool was stopped, or the machine."""
_LEAST_FOR_GAPS = 5

Ordered = list[tuple[Draft, int, int]]


def order(parts: Parts, indices: list[int]) -> tuple[Ordered, list[LogEvent]]:
    """Each draft with its device and its moment; no two of a device share one. And what clocks did meanwhile."""
    moments = _assumed(parts)
    moments, changes = _forward(parts.drafts, moments)
    changes += _gaps(parts.drafts, indices, moments)
    taken: set[tuple[int, int, int | None]] = set()
    ordered: Ordered = []
    for draft, index, moment in zip(parts.drafts, indices, moments, strict=True):
        at_ns = moment
        while (at_ns, index, draft.mig) in taken:
            at_ns += 1
        taken.add((at_ns, index, draft.mig))
        ordered.append((draft, index, at_ns))
    if not any("time" in note or "zone" in note for note in parts.notes):
        parts.note("Times that name no zone are taken as UTC.")
    return ordered, changes


def _assumed(parts: Parts) -> list[int]:
    """Stated times as they are; others follow the last one that was stated, a period apart."""
    period_ns = _period(parts.command)
    moments: list[int] = []
    base_ns, base_step, source = None, 0, ""
    last_ns = next((draft.at_ns for draft in parts.drafts if draft.at_ns is not None), parts.stated_ns or 0)
    for draft in parts.drafts:
        if draft.at_ns is not None:
            last_ns, base_ns = draft.at_ns, None
            moments.append(draft.at_ns)
            continue
        if base_ns is None or draft.source != source or draft.step < base_step:
            base_ns, base_step, source = last_ns + period_ns, draft.step, draft.source
            parts.note(f"Readings of {source} without a time are counted as {period_ns / NS:g} s apart.")
        last_ns = base_ns + (draft.step - base_step) * period_ns
        moments.append(last_ns)
    return moments


def _period(command: str | None) -> int:
    match = re.search(r"\s(?:-d|--delay)[ =](\d{1,4})\b", command or "")
    return int(match[1]) * NS if match and int(match[1]) else MONITOR_PERIOD_NS


def _forward(drafts: list[Draft], moments: list[int]) -> tuple[list[int], list[LogEvent]]:
    """Clocks that are set back, as in autumn, must not mix what came before with what came after."""
    shift_ns: dict[str, int] = defaultdict(int)
    last_ns: dict[str, int] = {}
    periods: dict[str, list[int]] = defaultdict(list)
    changes: list[LogEvent] = []
    moved: list[int] = []
    for draft, moment in zip(drafts, moments, strict=True):
        source = draft.source
        if source not in last_ns and last_ns:
            shift_ns[source] = 0
        at_ns = moment + shift_ns[source]
        before_ns = last_ns.get(source, at_ns)
        if at_ns < before_ns - BACK_NS and draft.at_ns is not None and draft.host is None:
            usual_ns = int(median(periods[source][-100:])) if periods[source] else NS
            shift_ns[source] += before_ns + usual_ns - at_ns
            changes.append(_change(moment, before_ns - at_ns, source))
            at_ns = before_ns + usual_ns
        elif at_ns > before_ns:
            periods[source].append(at_ns - before_ns)
        last_ns[source] = max(before_ns, at_ns)
        moved.append(at_ns)
    return moved, changes


def _change(moment: int, back_ns: int, source: str) -> LogEvent:
    text = f"The clock of {source} goes back by {back_ns / NS:.0f} s; what follows is counted on."
    return LogEvent(kind="clock_change", line=0, at_ns=moment, values={"text": text})


def _gaps(drafts: list[Draft], indices: list[int], moments: list[int]) -> list[LogEvent]:
    """Pauses of each format's stream, by the first device that is in it."""
    streams: dict[str, list[int]] = defaultdict(list)
    whose: dict[str, int] = {}
    for draft, index, moment in zip(drafts, indices, moments, strict=True):
        if draft.at_ns is None:  # its time is assumed, and so would its gaps be
            continue
        stream = streams[draft.source]
        if whose.setdefault(draft.source, index) == index and (not stream or moment > stream[-1]):
            stream.append(moment)
    found: list[LogEvent] = []
    for source, times in streams.items():
        if len(times) < _LEAST_FOR_GAPS:
            continue
        usual_ns = median(after - before for before, after in pairwise(times))
        for before, after in pairwise(times):
            if after - before > GAP_PERIODS * usual_ns:
                text = f"{source}: nothing for {(after - before) / NS:.0f} s, usually {usual_ns / NS:.3g} s."
                found.append(LogEvent(kind="gap", line=0, at_ns=before, values={"text": text}))
    return found
