"""Steps from ranges that users and frameworks draw around them, under whatever name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.timeline import Steps

__all__ = ["Ranges", "steps_from_ranges", "whole_window"]

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


def whole_window(start_ns: int, end_ns: int, why: str) -> Steps:
    """One window over everything, where no step is told."""
    return Steps(number=np.zeros(1, np.int64), start_ns=np.array([start_ns]), end_ns=np.array([end_ns]), inferred=why)


def _best_family(ranges: Ranges) -> Int64s | None:
    """Rows of the family with the best name; of equals, the one that covers most time."""
    families: dict[tuple[int, str], int] = {}
    merit = [_merit(name) for name in ranges.names]
    template = [DIGITS.sub("#", name) for name in ranges.names]
    numbered = ranges.number if ranges.number is not None else np.full(len(ranges.name), -1)
    likely = np.array([each < len(NAMES) for each in merit] or [False])[ranges.name] | (numbered >= 0)
    rows = np.flatnonzero(likely & (ranges.end_ns > ranges.start_ns))
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
