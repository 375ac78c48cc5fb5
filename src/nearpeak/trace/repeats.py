"""Steps of a trace that marks none, from what repeats: training runs the same kernels in every step.

A kernel that runs once a step cuts the device's work into steps. Which one that is, is not known; so each is tried, and
the cuts are judged: between two of them the same kernels must have run, equally often. Layers repeat as well, but what
stands between the last layer of one step and the first of the next is unlike a layer, and tells them from steps. Where
only a forward pass was recorded, nothing does: so a step must hold the optimizer's kernels or those of a backward pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.timeline import Kind, Steps, Timeline

__all__ = ["repeated_steps"]

FEWEST_STEPS = 3
FEWEST_KERNELS = 8
"""In a step: what is shorter is a loop that measures a kernel."""
UPDATE = re.compile(
    r"multi_tensor_apply|multitensorapply|adam|sgd|lamb_|lion|adagrad|rmsprop|resourceapply|optimi[sz]er"
)
BACKWARD = re.compile(r"backward|bwd|dgrad|wgrad|gradweight|gradinput|grad_|_grad|bn_bw|gammabeta")
"""In kernels' names, in lower case."""
IN_MOST = 0.9
ALIKE = 0.5
"""A part that differs more than this from the usual one is no step: a warm-up, an evaluation, a pause of training."""
LEAST_UNIFORM = 0.75
"""With what was set up before, and an evaluation now and then."""
AS_UNIFORM = 0.005
"""Cuts that are as good as the best, to so much; of these the finest are steps, the coarser ones several."""
MOST_TRIED = 48
MOST_CELLS = 500_000
"""Of the table of parts × kernels; beyond it the first parts are judged."""
LONGEST_PAUSE = 2.0
"""Usual steps; a longer pause at a step's end belongs to none."""

TELLING = 400
"""Characters of a kernel's name that tell; names of fused updates begin with long templates."""

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The kernels that open steps, and how alike the steps are."""

    first: NDArray[np.intp]
    """Positions among the device's kernels."""
    is_step: NDArray[np.bool_]
    """Of each part between two of them."""
    uniformity: float
    """1 where all parts run the same kernels equally often."""
    gap_ns: float
    """Usual idle time before the kernel that opens a step."""


def repeated_steps(timeline: Timeline) -> Steps | None:
    """From the begin of a step's first kernel to that of the next step's; None where nothing repeats so clearly."""
    rows = _kernels(timeline)
    if len(rows) < FEWEST_STEPS * FEWEST_KERNELS:
        return None
    start_ns = timeline.start_ns[rows]
    end_ns = np.maximum.accumulate(start_ns + timeline.duration_ns[rows])
    names, name = np.unique(timeline.name[rows], return_inverse=True)
    signs = _signs([timeline.names[each] for each in names])
    if not signs.any():
        return None
    tried = [_judged(first, name, signs, start_ns, end_ns) for first in _candidates(name)]
    sound = [cuts for cuts in tried if cuts.uniformity >= LEAST_UNIFORM and cuts.is_step.sum() >= FEWEST_STEPS]
    if not sound:
        return None
    best = max(cuts.uniformity for cuts in sound)
    finest = max(len(cuts.first) for cuts in sound if cuts.uniformity >= best - AS_UNIFORM)
    alike = [cuts for cuts in sound if cuts.uniformity >= best - AS_UNIFORM and len(cuts.first) >= finest - 1]
    chosen = max(alike, key=lambda cuts: cuts.gap_ns)
    opening = timeline.names[timeline.name[rows[chosen.first[0]]]]
    return _steps(chosen, start_ns, end_ns, opening)


def _kernels(timeline: Timeline) -> NDArray[np.intp]:
    """Of the device that runs most of them, in order of begin."""
    rows = timeline.rows(Kind.KERNEL, Kind.COMMUNICATION)
    devices = timeline.lane_devices()[timeline.lane[rows]]
    rows, devices = rows[devices >= 0], devices[devices >= 0]
    numbers, counts = np.unique(devices, return_counts=True)  # damage makes numbers that `bincount` cannot bear
    return rows[devices == numbers[counts.argmax()]] if len(rows) else rows


def _candidates(name: Int64s) -> list[NDArray[np.intp]]:
    """Where each kernel ran that may open a step, and where it ran after a pause from it: updates run several kernels
    of one name in a row. Those that ran seldom come first."""
    counts = np.bincount(name)
    fewest = FEWEST_STEPS + 1
    by_count = [each for each in np.argsort(counts, kind="stable").tolist() if counts[each] >= fewest]
    found: list[NDArray[np.intp]] = []
    for each in by_count[:MOST_TRIED]:
        ran = np.flatnonzero(name == each)
        apart = np.diff(ran)
        found.append(ran)
        begins_burst = np.append(True, apart > apart.max() / 2)
        if fewest <= begins_burst.sum() < len(ran):
            found.append(ran[begins_burst])
    return [first for first in found if len(first) * FEWEST_KERNELS <= len(name)]


def _signs(names: list[str]) -> NDArray[np.bool_]:
    """Which kernels tell a training step: those of the update, else those of the backward pass."""
    lowered = [name[:TELLING].lower() for name in names]
    updates = np.array([UPDATE.search(name) is not None for name in lowered], np.bool_)
    return updates if updates.any() else np.array([BACKWARD.search(name) is not None for name in lowered], np.bool_)


def _judged(first: NDArray[np.intp], name: Int64s, signs: NDArray[np.bool_], start_ns: Int64s, end_ns: Int64s) -> _Cuts:
    parts, kernels = len(first) - 1, len(signs)
    judged = max(FEWEST_STEPS, min(parts, MOST_CELLS // kernels))
    inside = name[first[0] : first[judged]]
    part = np.repeat(np.arange(judged), np.diff(first[: judged + 1]))
    table = np.bincount(part * kernels + inside, minlength=judged * kernels).reshape(judged, kernels)
    usual = np.median(table, axis=0)
    apart = np.abs(table - usual).sum(axis=1) / max(usual.sum(), 1.0)
    alike = apart <= ALIKE
    is_told = (table[alike][:, signs].sum(axis=1) > 0).mean() >= IN_MOST if alike.any() else False
    if usual.sum() < FEWEST_KERNELS or not is_told:
        return _Cuts(first, alike, 0.0, 0.0)
    share = table[alike].sum() / len(inside)
    is_step = np.concatenate([alike, np.ones(parts - judged, np.bool_)])
    gaps_ns = start_ns[first[1:]] - end_ns[first[1:] - 1]
    uniformity = float(share * (1 - apart[alike].mean())) * _reach(first, len(name))
    return _Cuts(first, is_step, uniformity, float(np.median(np.maximum(gaps_ns, 0))))


def _reach(first: NDArray[np.intp], count: int) -> float:
    """1 where the cuts reach over the trace; less where they are but in a part of it."""
    period = (first[-1] - first[0]) / (len(first) - 1)
    outside = max(0.0, first[0] - period) + max(0.0, count - first[-1] - period)
    return 1 - outside / count


def _steps(cuts: _Cuts, start_ns: Int64s, end_ns: Int64s, opening: str) -> Steps:
    begins, next_begins = start_ns[cuts.first[:-1]], start_ns[cuts.first[1:]]
    last_work_ns = end_ns[cuts.first[1:] - 1]
    usual_ns = float(np.median(next_begins - begins))
    ends = np.where(next_begins - last_work_ns > LONGEST_PAUSE * usual_ns, last_work_ns, next_begins)
    kept = np.flatnonzero(cuts.is_step & (ends > begins))
    how = f"the same kernels repeat {len(kept)} times: each `{opening[:60]}` is taken to begin a step"
    return Steps(number=np.arange(len(kept)), start_ns=begins[kept], end_ns=ends[kept], inferred=how)
