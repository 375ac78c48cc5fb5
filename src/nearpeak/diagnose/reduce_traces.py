"""Timelines reduced to facts: the breakdown of each rank and what rules want to know beyond it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.arrivals import Arrivals, arrivals_of
from nearpeak.diagnose.attribution import NEVER, Attribution, attribute, launch_ends_ns
from nearpeak.diagnose.breakdown import total
from nearpeak.diagnose.critical_path import critical_path
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.host_places import host_places
from nearpeak.diagnose.kernels import KernelTraits, traits_of
from nearpeak.diagnose.trace_facts import CollectiveFacts, KernelFacts, TraceFacts, TraceRank
from nearpeak.trace.timeline import Kind, Timeline

__all__ = ["SMALL_KERNEL_US", "reduce_traces"]

SMALL_KERNEL_US = 10
"""About what launching a kernel costs the host: shorter ones cannot keep it ahead of the device."""
MOST_KERNELS = 40
SMALLEST_PART = 0.01
"""Of the work of the busiest device."""
WORK = (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY)


def reduce_traces(timelines: Sequence[Timeline]) -> tuple[Facts, list[str]]:
    """Facts of all ranks together, and what could not be told, each as a sentence."""
    unknown = _notes(timelines)
    parts = [(line, attribute(line, device)) for line in timelines for device in _devices(line) or (None,)]
    parts = [(line, attribution) for line, attribution in parts if attribution.steps]
    if not parts:
        return Facts(source=_source(timelines, 0)), [*unknown, "No step with any work in it was found."]
    unknown += _missing(parts)
    ranks = tuple(total(list(attribution.steps)) for _, attribution in parts)
    steps_ns = [step.window_ns for _, attribution in parts for step in attribution.steps]
    steps = max(len(attribution.steps) for _, attribution in parts)
    facts = Facts(
        source=_source(timelines, steps),
        steps=steps,
        step_ms=float(np.median(steps_ns)) / 1e6,
        breakdown=total(list(ranks)),
        ranks=ranks,
        trace=_trace_facts(timelines, parts, unknown),
    )
    return facts, unknown


def _devices(line: Timeline) -> list[int]:
    """Those that work; a device on which a process only opened a context, or set a few bytes, is none of its own."""
    worked_ns = {device: int(line.duration_ns[line.rows(*WORK, device=device)].sum()) for device in line.busy_devices()}
    most_ns = max(worked_ns.values(), default=0)
    return [device for device, time_ns in worked_ns.items() if time_ns >= SMALLEST_PART * most_ns]


def _source(timelines: Sequence[Timeline], steps: int) -> str:
    where = timelines[0].source if len(timelines) == 1 else f"{len(timelines)} traces"
    return f"{steps} step{'s' if steps != 1 else ''} of {where}"


def _notes(timelines: Sequence[Timeline]) -> list[str]:
    """The same note of many files is told once."""
    told: dict[str, list[str]] = {}
    for timeline in timelines:
        inferred = timeline.steps.inferred
        for note in (*timeline.notes, *([f"steps are not marked: {inferred}"] if inferred else [])):
            told.setdefault(note, []).append(timeline.source)
    every = len(timelines)
    return [
        f"{files[0] if len(files) == 1 else f'{len(files)} of {every} files'}: {note.rstrip('.')}."
        for note, files in told.items()
    ]


def _missing(parts: list[tuple[Timeline, Attribution]]) -> list[str]:
    """What the traces do not hold and what cannot be told without it."""
    found = []
    for line, attribution in parts:
        if attribution.device is None:
            launched = bool(len(line.rows(Kind.LAUNCH)))
            why = (
                "kernels were launched but the device's side was not recorded: record with ProfilerActivity.CUDA"
                if launched
                else "it shows no device: operators on the CPU count as computing"
            )
            found.append(f"{line.source}: {why}.")
        elif not len(line.rows(Kind.LAUNCH)):
            found.append(f"{line.source}: host calls were not recorded; why the device idles cannot be told.")
    return found


def _trace_facts(
    timelines: Sequence[Timeline], parts: list[tuple[Timeline, Attribution]], unknown: list[str]
) -> TraceFacts:
    arrivals = arrivals_of([(line, attribution.device) for line, attribution in parts])
    if len(parts) > 1 and arrivals is None and any(attribution.whole_communication_ns for _, attribution in parts):
        unknown.append("The ranks' exchanges do not match one another: which rank is late cannot be told.")
    kernels = _kernels(parts)
    device = next((device for line in timelines for device in line.devices if device.name), None)
    facts = TraceFacts(
        ranks=_ranks(parts, arrivals),
        is_xplane=timelines[0].source.endswith((".xplane.pb", ".xplane.pb.gz")),
        world_size=next((line.world_size for line in timelines if line.world_size), None),
        device_name=device.name if device else None,
        compute_capability=device.compute_capability if device else None,
        kernels=kernels[:MOST_KERNELS],
        collectives=_collectives(parts),
        waiting_share=_waiting_share(parts, arrivals),
        critical_path=critical_path(*max(parts, key=lambda part: total(list(part[1].steps)).window_ns)),
        host_places=host_places(*max(parts, key=lambda part: _host_share(part[1]))),
        **_memory(timelines),
    )
    return replace(facts, **_of_products(kernels), **_of_launches(parts), **_of_transfers(parts))


def _host_share(attribution: Attribution) -> float:
    return total(list(attribution.steps)).share("host_work")


def _ranks(parts: list[tuple[Timeline, Attribution]], arrivals: Arrivals | None) -> tuple[TraceRank, ...]:
    found = []
    for position, (line, attribution) in enumerate(parts):
        steps = len(attribution.steps)
        waited = arrivals.waited_ns[position] / steps / 1e6 if arrivals else None
        cost = arrivals.cost_ns[position] / steps / 1e6 if arrivals else None
        mean_ms = sum(step.window_ns for step in attribution.steps) / steps / 1e6
        found.append(
            TraceRank(
                source=line.source,
                rank=line.rank,
                device=attribution.device,
                step_ms=mean_ms,
                waited_ms=waited,
                cost_ms=cost,
            )
        )
    return tuple(found)


def _waiting_share(parts: list[tuple[Timeline, Attribution]], arrivals: Arrivals | None) -> float | None:
    if arrivals is None:
        return None
    window_ns = sum(step.window_ns for _, attribution in parts for step in attribution.steps)
    return min(1.0, sum(arrivals.waited_ns) / window_ns)


def _in_steps(line: Timeline, attribution: Attribution, *kinds: Kind) -> NDArray[np.intp]:
    """Rows of the device that begin within its steps' span."""
    rows = line.rows(*kinds, device=attribution.device)
    return rows[_inside(line, line.start_ns[rows])]


def _inside(line: Timeline, start_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (start_ns >= line.steps.start_ns[0]) & (start_ns < line.steps.end_ns[-1])


def _kernels(parts: list[tuple[Timeline, Attribution]]) -> tuple[KernelFacts, ...]:
    """Every kernel by name, longest first."""
    time_ns: dict[str, int] = {}
    count: dict[str, int] = {}
    for line, attribution in parts:
        rows = _in_steps(line, attribution, Kind.KERNEL) if attribution.device is not None else np.zeros(0, np.intp)
        counts = np.bincount(line.name[rows], minlength=1)
        times = np.bincount(line.name[rows], weights=line.duration_ns[rows], minlength=1)
        for name in np.flatnonzero(counts):
            text = line.names[name]
            time_ns[text] = time_ns.get(text, 0) + int(times[name])
            count[text] = count.get(text, 0) + int(counts[name])
    longest = sorted(time_ns, key=lambda name: -time_ns[name])
    return tuple(_kernel(name, traits_of(name), count[name], time_ns[name]) for name in longest)


def _kernel(name: str, traits: KernelTraits, count: int, time_ns: int) -> KernelFacts:
    return KernelFacts(
        name=name,
        family=traits.family,
        uses_tensor_cores=traits.uses_tensor_cores,
        number_format=traits.number_format,
        count=count,
        time_ns=time_ns,
    )


def _of_products(kernels: tuple[KernelFacts, ...]) -> dict[str, Any]:
    products = [kernel for kernel in kernels if kernel.family in ("matrix", "convolution", "attention")]
    product_ns, all_ns = sum(each.time_ns for each in products), sum(each.time_ns for each in kernels)
    if not product_ns:
        return {"product_share": 0.0 if all_ns else None}
    formats: dict[str, float] = {}
    for each in products:
        formats[each.number_format] = formats.get(each.number_format, 0.0) + each.time_ns / product_ns
    on_tensor_cores = sum(each.time_ns for each in products if each.uses_tensor_cores)
    return {
        "product_share": product_ns / all_ns,
        "tensor_core_share": on_tensor_cores / product_ns,
        "format_shares": formats,
    }


def _of_launches(parts: list[tuple[Timeline, Attribution]]) -> dict[str, Any]:
    """How densely the host feeds the device."""
    count = small = steps = launched = 0
    queued_ns = window_ns = 0
    for line, attribution in parts:
        if attribution.device is None:
            continue
        inside = _inside(line, line.start_ns[attribution.work])
        rows = attribution.work[inside]
        kernels = rows[line.kind[rows] == Kind.KERNEL]
        count, steps = count + len(kernels), steps + len(attribution.steps)
        small += int(np.count_nonzero(line.duration_ns[kernels] < SMALL_KERNEL_US * 1000))
        ends_ns = launch_ends_ns(line, attribution.calls[inside])
        known = ends_ns > NEVER
        queued_ns += int(np.maximum(line.start_ns[rows[known]] - ends_ns[known], 0).sum())
        launched += int(np.count_nonzero(known))
        window_ns += int(line.steps.end_ns[-1] - line.steps.start_ns[0])
    return {
        "kernels_per_step": count / steps if steps else None,
        "small_kernel_share": small / count if count else None,
        "launches_per_s": launched / window_ns * 1e9 if launched else None,
        "queue_depth": queued_ns / window_ns if launched else None,
    }


def _of_transfers(parts: list[tuple[Timeline, Attribution]]) -> dict[str, Any]:
    whole_ns = sum(attribution.whole_communication_ns for _, attribution in parts)
    hidden_ns = sum(attribution.overlapped_ns for _, attribution in parts)
    copies: dict[str, int] = {}
    for _, attribution in parts:
        for route, spans in attribution.copies.items():
            copies[route] = copies.get(route, 0) + int((spans.end - spans.start).sum())
    copied_ns = sum(copies.values())
    pageable_ns = sum(time_ns for route, time_ns in copies.items() if route.endswith("pageable"))
    return {
        "hidden_communication_share": hidden_ns / whole_ns if whole_ns else None,
        "exposed_copy_ns": copies,
        "pageable_share": pageable_ns / copied_ns if copied_ns else None,
    }


@dataclass(slots=True)
class _Exchanges:
    """A running count of one operation."""

    count: int = 0
    time_ns: int = 0
    n_bytes: int = 0
    with_bytes: int = 0
    group_size: int = -1

    def add(self, duration_ns: int, n_bytes: int, group_size: int) -> None:
        self.count, self.time_ns = self.count + 1, self.time_ns + duration_ns
        self.n_bytes, self.with_bytes = self.n_bytes + max(n_bytes, 0), self.with_bytes + (n_bytes >= 0)
        self.group_size = max(self.group_size, group_size)


def _collectives(parts: list[tuple[Timeline, Attribution]]) -> tuple[CollectiveFacts, ...]:
    """By operation where the trace names it, else by kernel; the longest first."""
    found: dict[str, _Exchanges] = defaultdict(_Exchanges)
    for line, attribution in parts:
        if attribution.device is not None:
            _count_exchanges(line, _in_steps(line, attribution, Kind.COMMUNICATION), found)
    facts = (
        CollectiveFacts(
            operation=name,
            count=each.count,
            time_ns=each.time_ns,
            n_bytes=each.n_bytes if each.with_bytes == each.count else None,
            group_size=each.group_size if each.group_size > 0 else None,
        )
        for name, each in found.items()
    )
    return tuple(sorted(facts, key=lambda each: -each.time_ns))


def _count_exchanges(line: Timeline, rows: NDArray[np.intp], found: dict[str, _Exchanges]) -> None:
    more = line.collectives
    about = {int(row): position for position, row in enumerate(more.row)} if more is not None else {}
    for row in rows.tolist():
        at = about.get(row)
        name, n_bytes, group_size = "", -1, -1
        if more is not None and at is not None:
            name, n_bytes, group_size = more.operation[at], int(more.n_bytes[at]), int(more.group_size[at])
        found[name or _short(line.names[line.name[row]])].add(int(line.duration_ns[row]), n_bytes, group_size)


def _short(name: str) -> str:
    """A kernel's name without its arguments."""
    return name.partition("(")[0].strip() or name


def _memory(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Highest readings; None without any."""
    allocated = [int(line.memory.allocated_bytes.max()) for line in timelines if line.memory is not None]
    reserved = [int(line.memory.reserved_bytes.max()) for line in timelines if line.memory is not None]
    return {
        "peak_allocated_bytes": max(allocated, default=-1) if max(allocated, default=-1) >= 0 else None,
        "peak_reserved_bytes": max(reserved, default=-1) if max(reserved, default=-1) >= 0 else None,
    }
