"""What is recorded beside the steps, reduced: events, loader workers, readings of devices, growth of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from nearpeak.diagnose.run_facts import EventFacts, GrowthFacts, ReadingFacts, RunFacts, WorkerFacts
from nearpeak.diagnose.step_columns import StepColumns
from nearpeak.recording import EventRecord, ReadingRecord, WorkerRecord

__all__ = ["crowded", "event_facts", "growth_facts", "reading_facts", "worker_facts"]

PARTS = 8
"""Into how many parts the steps are cut to see whether memory rises throughout."""
HOST = -1
CROWDED_SHARE = 0.25
"""Of all cores: below, it is the rounding of the readings and the system's own work."""
HARMLESS = frozenset({"none", "gpu_idle", "application_clocks_setting", "sync_boost", "display_clock_setting"})
"""Reasons that NVML gives for a clock below its maximum without anything being wrong."""


def event_facts(
    events: Sequence[EventRecord], span_ns: tuple[int, int], steps: Mapping[int, StepColumns]
) -> dict[str, EventFacts]:
    """Those inside the span; mean over the ranks, whose steps are given by their process."""
    by_kind: dict[str, list[EventRecord]] = defaultdict(list)
    for event in events:
        if span_ns[0] <= event.at_ns <= span_ns[1]:
            by_kind[event.kind].append(event)
    return {kind: _event_facts(members, steps) for kind, members in by_kind.items()}


def _event_facts(events: Sequence[EventRecord], steps: Mapping[int, StepColumns]) -> EventFacts:
    times_ms = [event.duration_ms for event in events if event.duration_ms is not None]
    happened = {(event.process, event.step) for event in events}
    waits_ms = [steps[process].at("input_ms", step) for process, step in happened if process in steps]
    known_ms = [wait_ms for wait_ms in waits_ms if wait_ms is not None]
    return EventFacts(
        count=len(events) / len(steps),
        total_ms=sum(times_ms) / len(steps) if len(times_ms) == len(events) else None,
        input_ms=sum(known_ms) / len(steps) if known_ms else None,
    )


def crowded(run: RunFacts) -> list[str]:
    """A sentence where other processes took much of the CPU meanwhile: times are then longer than they need be."""
    host = next((each for each in run.readings if each.device == HOST), None)
    cpu_ms, cores = run.per_step.get("cpu_ms"), run.process.cores
    if host is None or host.busy_percent is None or cpu_ms is None or not cores:
        return []
    own = len(run.ranks) * (cpu_ms + run.per_step.get("worker_cpu_ms", 0.0)) / (run.mean_step_ms * cores)
    others = host.busy_percent / 100 - own
    if others < CROWDED_SHARE:
        return []
    return [
        f"Other processes took about {100 * others:.0f} % of the CPU's time meanwhile: "
        "times are longer than on a quiet machine, and vary."
    ]


def worker_facts(workers: Sequence[WorkerRecord]) -> WorkerFacts | None:
    """None where no worker delivered anything."""
    batches = sum(worker.batches for worker in workers)
    if not batches:
        return None
    firsts_ms = [worker.first_batch_ms for worker in workers if worker.first_batch_ms is not None]
    return WorkerFacts(
        seen=sum(worker.batches > 0 for worker in workers),
        batches=batches,
        fetch_ms=sum(worker.fetch_ms for worker in workers) / batches,
        fetch_cpu_ms=sum(worker.fetch_cpu_ms for worker in workers) / batches,
        first_batch_ms=float(np.median(firsts_ms)) if firsts_ms else None,
    )


def growth_facts(columns: StepColumns) -> tuple[GrowthFacts, ...]:
    """Of the memory that tensors hold on the device, and of what the process holds."""
    named = {"device": "allocated_bytes", "process": "rss_bytes"}
    found = (_growth(memory, columns.values.get(column)) for memory, column in named.items())
    return tuple(growth for growth in found if growth is not None)


def _growth(memory: str, values: np.ndarray | None) -> GrowthFacts | None:
    if values is None or (~np.isnan(values)).sum() < PARTS:
        return None
    at = np.flatnonzero(~np.isnan(values))
    known = values[at]
    means = [part.mean() for part in np.array_split(known, PARTS)]
    rises = np.diff(means) > 0
    return GrowthFacts(
        memory=memory,
        bytes_per_step=float(np.polyfit(at, known, 1)[0]),
        first_bytes=float(means[0]),
        last_bytes=float(means[-1]),
        rising_share=float(rises.mean()),
    )


def reading_facts(readings: Sequence[ReadingRecord], span_ns: tuple[int, int]) -> tuple[ReadingFacts, ...]:
    """Of those taken inside the span, by device."""
    by_device: dict[int, list[ReadingRecord]] = defaultdict(list)
    for reading in readings:
        if span_ns[0] <= reading.at_ns <= span_ns[1]:
            by_device[reading.device].append(reading)
    return tuple(_reading_facts(device, members) for device, members in sorted(by_device.items()))


def _reading_facts(device: int, readings: Sequence[ReadingRecord]) -> ReadingFacts:
    used = [
        r.memory_used_bytes / r.memory_total_bytes for r in readings if r.memory_used_bytes and r.memory_total_bytes
    ]
    named = [_slowing(r.throttle_reasons) for r in readings if r.throttle_reasons is not None]
    clocks = [r.clock_hz / r.clock_max_hz for r in readings if r.clock_hz and r.clock_max_hz]
    return ReadingFacts(
        device=device,
        name=next((r.name for r in readings if r.name), None),
        readings=len(readings),
        busy_percent=_mean([r.busy_percent for r in readings if r.busy_percent is not None]),
        memory_used_share=max(used, default=None),
        memory_total_bytes=next((r.memory_total_bytes for r in readings if r.memory_total_bytes), None),
        throttled_share=_mean([float(bool(reasons)) for reasons in named]),
        throttle_reasons=tuple(sorted({reason for reasons in named for reason in reasons})),
        clock_share=_mean(clocks),
        running_threads=_mean([r.running_threads for r in readings if r.running_threads is not None]),
        disk_read_bytes_per_s=_disk_rate(readings),
    )


def _slowing(reasons: str | None) -> list[str]:
    return [reason for reason in (reasons or "").split(",") if reason and reason not in HARMLESS]


def _disk_rate(readings: Sequence[ReadingRecord]) -> float | None:
    known = [(r.at_ns, r.disk_read_bytes) for r in readings if r.disk_read_bytes is not None]
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return None
    return (known[-1][1] - known[0][1]) / ((known[-1][0] - known[0][0]) / 1e9)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
