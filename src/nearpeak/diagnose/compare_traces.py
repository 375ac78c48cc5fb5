"""Two traces of a job, such as before and after a change: what of a step became longer or shorter, by cause and kernel.

The causes of a step are exclusive, so their changes sum to the change of the mean step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.attribution import Attribution, attribute
from nearpeak.diagnose.breakdown import IDLE_CAUSES, Breakdown
from nearpeak.diagnose.compare_runs import Comparison, Run, compare
from nearpeak.diagnose.reduce_xprof import steps_of
from nearpeak.errors import DataError
from nearpeak.trace.timeline import Kind, Timeline
from nearpeak.trace.xprof import XprofFigures

__all__ = ["CauseChange", "KernelChange", "TraceComparison", "TracedRun", "compare_traces", "traced_run", "xprof_run"]

BUSY = ("compute", "communication", "copy")
NS_PER_MS = 1e6
ROUNDING_MS = 1e-9
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """What is compared of a trace: per step, mean over ranks and devices."""

    name: str
    step_ms: Floats
    cause_ms: Mapping[str, Floats]
    """Per step; they sum to the step."""
    kernels: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By name: time in ms and count, per step of one device. Work that runs at once counts for each."""
    devices: int = 1
    device_name: str | None = None
    steps_inferred: str | None = None
    """How steps were found where the trace does not mark them."""


def _change(first_ms: float, second_ms: float) -> float:
    """None where means differ by rounding alone."""
    return second_ms - first_ms if abs(second_ms - first_ms) > ROUNDING_MS else 0.0


@dataclass(frozen=True, slots=True)
class CauseChange:
    """Mean time of one cause per step."""

    cause: str
    first_ms: float
    second_ms: float

    @property
    def change_ms(self) -> float:
        return _change(self.first_ms, self.second_ms)


@dataclass(frozen=True, slots=True)
class KernelChange:
    """Time and number of one kernel, exchange or copy per step."""

    name: str
    first_ms: float
    second_ms: float
    first_count: float
    second_count: float

    @property
    def change_ms(self) -> float:
        return _change(self.first_ms, self.second_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """The second trace against the first."""

    whole: Comparison
    """The mean step and how sure its change is."""
    causes: tuple[CauseChange, ...]
    """Largest change first; the changes sum to that of the mean step."""
    kernels: tuple[KernelChange, ...]
    """Largest change first."""
    unknown: tuple[str, ...] = ()


def traced_run(name: str, timelines: Sequence[Timeline]) -> TracedRun:
    """Of the ranks of one run."""
    parts = [(line, attribute(line, device)) for line in timelines for device in line.busy_devices() or (None,)]
    parts = [(line, attribution) for line, attribution in parts if attribution.steps]
    if not parts:
        raise DataError(f"{name}: no step with any work in it was found.")
    step_ms, cause_ms = _of_steps([attribution.steps for _, attribution in parts])
    return TracedRun(
        name=name,
        step_ms=step_ms,
        cause_ms=cause_ms,
        kernels=_kernels(parts),
        devices=len(parts),
        device_name=next((device.name for line, _ in parts for device in line.devices if device.name), None),
        steps_inferred=next((line.steps.inferred for line, _ in parts if line.steps.inferred), None),
    )


def xprof_run(name: str, hosts: Sequence[XprofFigures]) -> TracedRun:
    """Of XProf's own figures, which hold no single kernels."""
    ranks = [steps for steps in map(steps_of, hosts) if steps]
    if not ranks:
        raise DataError(f"{name}: XProf's files hold no times of steps; give the *.xplane.pb files themselves.")
    step_ms, cause_ms = _of_steps(ranks)
    return TracedRun(name=name, step_ms=step_ms, cause_ms=cause_ms, devices=len(ranks))


def _of_steps(ranks: Sequence[Sequence[Breakdown]]) -> tuple[Floats, dict[str, Floats]]:
    """Mean over the ranks of the steps that all of them have."""
    count = min(map(len, ranks))
    causes = {
        cause: _mean([[getattr(step, f"{cause}_ns") for step in steps[:count]] for steps in ranks]) for cause in BUSY
    }
    for cause in IDLE_CAUSES:
        causes[cause] = _mean([[step.idle_ns.get(cause, 0) for step in steps[:count]] for steps in ranks])
    return _mean([[step.window_ns for step in steps[:count]] for steps in ranks]), causes


def _mean(ranks_ns: list[list[int]]) -> Floats:
    return np.array(ranks_ns, dtype=np.float64).mean(axis=0) / NS_PER_MS


def _kernels(parts: Sequence[tuple[Timeline, Attribution]]) -> dict[str, tuple[float, float]]:
    """What ran on the devices within the steps, by name."""
    totals: dict[str, list[float]] = {}
    for line, attribution in parts:
        if attribution.device is None:
            continue
        rows = line.rows(Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY, device=attribution.device)
        step = np.searchsorted(line.steps.start_ns, line.start_ns[rows], side="right") - 1
        rows = rows[(step >= 0) & (line.start_ns[rows] < line.steps.end_ns[np.maximum(step, 0)])]
        time_ns = np.bincount(line.name[rows], weights=line.duration_ns[rows], minlength=len(line.names))
        count = np.bincount(line.name[rows], minlength=len(line.names))
        for name in np.flatnonzero(count).tolist():
            entry = totals.setdefault(line.names[name], [0.0, 0.0])
            entry[0] += float(time_ns[name]) / NS_PER_MS / len(line.steps) / len(parts)
            entry[1] += float(count[name]) / len(line.steps) / len(parts)
    return {name: (time_ms, number) for name, (time_ms, number) in totals.items()}


def compare_traces(first: TracedRun, second: TracedRun) -> TraceComparison:
    """What changed from the first to the second."""
    causes = [
        CauseChange(cause, float(first.cause_ms[cause].mean()), float(second.cause_ms[cause].mean()))
        for cause in (*BUSY, *IDLE_CAUSES)
    ]
    names = dict.fromkeys((*first.kernels, *second.kernels))
    nothing = (0.0, 0.0)
    kernels = [
        KernelChange(name, one[0], other[0], one[1], other[1])
        for name in names
        for one, other in ((first.kernels.get(name, nothing), second.kernels.get(name, nothing)),)
    ]
    return TraceComparison(
        whole=compare(_as_run(first), _as_run(second)),
        causes=tuple(sorted(causes, key=lambda each: -abs(each.change_ms))),
        kernels=tuple(sorted(kernels, key=lambda each: -abs(each.change_ms))),
        unknown=tuple(_unlike(first, second)),
    )


def _as_run(run: TracedRun) -> Run:
    setup: dict[str, object] = {"devices": run.devices, "device": run.device_name}
    return Run(run.name, run.step_ms, {}, None, setup)


def _unlike(first: TracedRun, second: TracedRun) -> list[str]:
    """Why the two may not be of one kind."""
    found = []
    if first.device_name and second.device_name and first.device_name != second.device_name:
        found.append(f"The devices differ ({first.device_name}, {second.device_name}): so do the times of all kernels.")
    if first.devices != second.devices:
        found.append(f"{first.devices} and {second.devices} devices were traced: means over them are compared.")
    if bool(first.kernels) != bool(second.kernels):
        found.append("Only one of the two holds single kernels: kernels cannot be compared.")
    inferred = [run for run in (first, second) if run.steps_inferred]
    found += [f"{run.name}: steps are not marked: {run.steps_inferred}." for run in inferred]
    if any(len(run.step_ms) == 1 for run in inferred):
        found.append(
            "Where a whole trace counts as one step, shares of its time compare, but no times, nor numbers of kernels: "
            "mark the steps (`torch.cuda.nvtx.range_push('step')`), or record equally many."
        )
    return found
