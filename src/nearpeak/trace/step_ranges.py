"""Steps from ranges that users and frameworks draw around them, under whatever name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.assembly import LATEST_NS, LONGEST_NS
from nearpeak.trace.timeline import Steps

__all__ = ["Ranges", "steps_from_phases", "steps_from_ranges"]

Int64s = NDArray[np.int64]

FEWEST = 2
"""Ranges of one name that recur: a single one may be the whole program."""
LONGEST_GAP = 2.0
"""Median steps; a longer pause between two steps (an evaluation, an epoch's end) belongs to neither."""
DIGITS = re.compile(r"\d+")
NAMES = (
    re.compile(r"^profiler[ _]?step", re.I),
    re.compile(r"(?:^|[^a-z])(?:step|iteration|iter)s?(?:$|[^a-z])", re.I),
    re.compile(r"run_training_batch|train(?:ing)?[ _]batch|(?:^|[^a-z])(?:mini[ _-]?)?batch[ _#:=]*\d*$", re.I),
    re.compile(r"^train(?:ing)?$", re.I),
)
"""Best first; of equals, what covers most time wins. Names within a step, such as ``optimizer.step``, are none."""
PHASES = re.compile(
    r"^(?:forward|fwd|data[ _]?load\w*|load[ _]?data|(?:copy|move)[ _]?to[ _]?(?:device|gpu|cuda)|h2d|"
    r"(?:optimi[sz]er\.)?zero_grad|Optimizer\.zero_grad#.*)(?:$|[^a-z])",
    re.IGNORECASE,
)
"""What a training loop does first in a step, or early."""
FEWEST_PHASES = 3
MOST_PER_STEP = 16
"""A phase of a micro-batch recurs within a step, up to so often; what recurs less than that is an epoch's."""
WITHIN = re.compile(r"optimizer\.step|Optimizer\.step|zero_grad|lr_scheduler|scheduler\.step|::", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Ranges of one trace that may be steps."""

    start_ns: Int64s
    end_ns: Int64s
    thread: Int64s
    name: Int64s
    """Index into `names`."""
    names: tuple[str, ...]
    number: Int64s | None = None
    """Step number where the trace gives it apart from the name; -1 where not."""


def steps_from_ranges(ranges: Ranges) -> Steps | None:
    """The best family of ranges, as steps from begin to begin; None where no name looks like a step's.

    A family is the ranges of one thread whose names differ in numbers only. What lies between two steps (often the
    wait for the next batch) belongs to the earlier one, unless the pause is long.
    """
    family = _best_family(ranges)
    if family is None:
        return None
    family = family[np.argsort(ranges.start_ns[family], kind="stable")]
    family = _outermost(family, ranges.start_ns, ranges.end_ns)
    start_ns, own_end_ns = ranges.start_ns[family], ranges.end_ns[family]
    return Steps(
        number=_numbers(ranges, family),
        start_ns=start_ns,
        end_ns=_until_next(start_ns, own_end_ns),
    )


def steps_from_phases(ranges: Ranges) -> Steps | None:
    """Steps from a phase that recurs once in each (``forward``, ``zero_grad``), from begin to begin; None without one.

    Of the phases that recur most often alike, the one that begins first opens the step.
    """
    is_phase = np.array([PHASES.search(name) is not None for name in ranges.names] or [False])
    rows = np.flatnonzero(is_phase[ranges.name] & _sound(ranges)) if len(ranges.name) else np.zeros(0, np.int64)
    templates: dict[tuple[int, str], list[int]] = {}
    for row in rows.tolist():
        template = DIGITS.sub("#", ranges.names[ranges.name[row]])
        templates.setdefault((int(ranges.thread[row]), template), []).append(row)
    recurring = [_in_order(members, ranges) for members in templates.values() if len(members) >= FEWEST_PHASES]
    if not recurring:
        return None
    most = max(map(len, recurring))
    recurring = [family for family in recurring if len(family) * MOST_PER_STEP >= most]
    fewest = min(map(len, recurring))
    alike = [family for family in recurring if len(family) <= fewest + 1]
    opening = min(alike, key=lambda family: int(ranges.start_ns[family[0]]))
    start_ns = ranges.start_ns[opening]
    name = DIGITS.sub("#", ranges.names[ranges.name[opening[0]]])
    return Steps(
        number=np.arange(len(opening)),
        start_ns=start_ns,
        end_ns=_until_next(start_ns, ranges.end_ns[opening]),
        inferred=f"no range looks like a step: each `{name}` is taken to begin one",
    )


def _in_order(rows: list[int], ranges: Ranges) -> Int64s:
    found = np.array(rows, dtype=np.int64)
    found = found[np.argsort(ranges.start_ns[found], kind="stable")]
    return _outermost(found, ranges.start_ns, ranges.end_ns)


def _best_family(ranges: Ranges) -> Int64s | None:
    """Rows of the family with the best name; of equals, the one that covers most time."""
    families: dict[tuple[int, str], int] = {}
    merit = [_merit(name) for name in ranges.names]
    template = [DIGITS.sub("#", name) for name in ranges.names]
    numbered = ranges.number if ranges.number is not None else np.full(len(ranges.name), -1)
    likely = np.array([each < len(NAMES) for each in merit] or [False])[ranges.name] | (numbered >= 0)
    rows = np.flatnonzero(likely & _sound(ranges))
    keys = np.array(
        [families.setdefault((int(ranges.thread[r]), template[ranges.name[r]]), len(families)) for r in rows], np.int64
    )
    rows, keys = rows[np.argsort(keys, kind="stable")], np.sort(keys)
    best: tuple[tuple[int, int], Int64s] | None = None
    for members in np.split(rows, np.flatnonzero(np.diff(keys)) + 1):
        if len(members) < FEWEST:
            continue
        rank = -1 if (numbered[members] >= 0).all() else min(merit[ranges.name[row]] for row in members)
        covered = int((ranges.end_ns[members] - ranges.start_ns[members]).sum())
        if best is None or (rank, -covered) < best[0]:
            best = ((rank, -covered), members)
    return best[1] if best else None


def _sound(ranges: Ranges) -> NDArray[np.bool_]:
    """Ranges with times that can be true."""
    lasts_ns = ranges.end_ns.astype(np.float64) - ranges.start_ns
    return (np.abs(ranges.start_ns) < LATEST_NS) & (lasts_ns > 0) & (lasts_ns < LONGEST_NS)


def _merit(name: str) -> int:
    """Place of the name among `NAMES`; behind all of them for what lies within a step."""
    if WITHIN.search(name) and not name.startswith("[pl]"):
        return len(NAMES)
    return next((place for place, pattern in enumerate(NAMES) if pattern.search(name)), len(NAMES))


def _outermost(rows: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Without ranges that begin before an earlier one ended: steps do not overlap."""
    kept: list[int] = []
    reach = np.iinfo(np.int64).min
    for row in rows.tolist():
        if start_ns[row] >= reach:
            kept.append(row)
            reach = end_ns[row]
    return np.array(kept, dtype=np.int64)


def _until_next(start_ns: Int64s, own_end_ns: Int64s) -> Int64s:
    period_ns = int(np.median(np.diff(start_ns))) if len(start_ns) > 1 else 0
    end_ns = own_end_ns.copy()
    near = start_ns[1:] - own_end_ns[:-1] <= LONGEST_GAP * period_ns
    end_ns[:-1][near] = start_ns[1:][near]
    return end_ns


def _numbers(ranges: Ranges, rows: Int64s) -> Int64s:
    """As the trace gives them, if they ascend; else counted from 0."""
    told = ranges.number[rows] if ranges.number is not None else np.full(len(rows), -1)
    if (told < 0).any():
        found = [DIGITS.findall(ranges.names[ranges.name[row]]) for row in rows]
        told = np.array([int(each[-1]) if each and len(each[-1]) < 19 else -1 for each in found], dtype=np.int64)
    ascending = (told >= 0).all() and bool((np.diff(told) > 0).all())
    return told if ascending else np.arange(len(rows), dtype=np.int64)
