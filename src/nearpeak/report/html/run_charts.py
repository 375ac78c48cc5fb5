"""Charts of a run over its time: steps, phases, memory, throughput, devices, what was learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nearpeak.recording import PHASES, EventRecord
from nearpeak.report.html.axes import Kind
from nearpeak.report.html.charts import Limit, Series, line_chart, stacked_area
from nearpeak.report.html.decimate import MOST_BINS, Floats
from nearpeak.report.html.lanes import Lane, timeline
from nearpeak.report.html.markup import Html
from nearpeak.report.run_columns import DeviceColumns, ProcessColumns, RunColumns
from nearpeak.report.wording import PHASE_NAMES

__all__ = ["device_charts", "learning_charts", "memory_charts", "side_by_side", "step_charts", "throughput_charts"]

MOST_LINES = 8
"""More lines than these cannot be told apart: they become one with its spread."""
SIDE_BY_SIDE_STEPS = 8
SIDE_BY_SIDE_RANKS = 16
EVENT_COLOURS = {
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "compile": "launch",
    "overflow": "sync",
    "loader_start": "input",
}


def step_charts(run: RunColumns, events: Sequence[EventRecord]) -> list[Html | None]:
    """How long steps took, what they did meanwhile, and what happened now and then."""
    kind = _x_kind(run)
    walls = _lines(run.processes, lambda each: 1e3 * each.values["wall_s"], "all ranks")
    x = np.concatenate([each.x for each in run.processes]) if run.processes else np.empty(0)
    phases = [Series(PHASE_NAMES[phase], x, _pooled(run, f"{phase}_ms"), phase, gaps=False) for phase in PHASES]
    mean = "Mean over the steps behind a pixel."
    return [
        line_chart("Time of a step", walls, y_kind="ms", x_kind=kind, span=run.span, note=_spread_note(run)),
        stacked_area("What a step did", x, phases, y_kind="ms", x_kind=kind, span=run.span, note=mean),
        _event_lanes(run, events),
    ]


def side_by_side(run: RunColumns) -> Html | None:
    """Some steps in the middle of the run, rank under rank."""
    middle = _middle_steps(run.processes)
    lanes = [_step_lane(each, *middle) for each in run.processes[:SIDE_BY_SIDE_RANKS]] if middle else []
    begins = [lane.start.min() for lane in lanes if len(lane.start)]
    if not middle or not begins or run.start_ns is None:
        return None
    zero = float(min(begins))
    moved = [Lane(lane.name, lane.start - zero, lane.duration, lane.kind, lane.labels) for lane in lanes]
    return timeline(
        f"Steps {middle[0]:,} to {middle[1]:,}, side by side",
        moved,
        {PHASE_NAMES[phase]: phase for phase in PHASES},
        note="How long each phase took is measured; inside a step they stand in their usual order.",
    )


def memory_charts(run: RunColumns) -> list[Html | None]:
    """Of the device as the training's allocator sees it, and of the processes on their host."""
    alone = len(run.processes) == 1
    kinds = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "peak of the step": "peak_bytes"}
    if alone:
        only = run.processes[0]
        device = [Series(name, only.x, only.values[key], f"s{i}") for i, (name, key) in enumerate(kinds.items(), 1)]
    else:
        device = _lines(run.processes, lambda each: each.values["peak_bytes"], "all ranks")
    resident = _lines(run.processes, lambda each: each.values["rss_bytes"], "all ranks")
    title = "Device memory, by the allocator" if alone else "Device memory: peak of each step, by rank"
    limits = _memory_limits(run.devices)
    return [
        line_chart(title, device, y_kind="bytes", x_kind=_x_kind(run), span=run.span, limits=limits),
        line_chart("Process memory (resident)", resident, y_kind="bytes", x_kind=_x_kind(run), span=run.span),
    ]


def throughput_charts(run: RunColumns) -> list[Html | None]:
    """Samples and tokens a second, of all ranks together."""
    kind = _x_kind(run)
    whose = ", all ranks" if len(run.processes) > 1 else ""
    samples = _rates(run.processes, "samples")
    tokens = [
        *(replace(s, colour="s1") for s in _rates(run.processes, "tokens", "tokens")),
        *(replace(s, colour="s2") for s in _rates(run.processes, "padded_tokens", "with padding")),
    ]
    return [
        line_chart(f"Samples per second{whose}", samples, y_kind="per_s", x_kind=kind, span=run.span),
        line_chart(f"Tokens per second{whose}", tokens, y_kind="per_s", x_kind=kind, span=run.span),
    ]


def device_charts(run: RunColumns) -> list[Html | None]:
    """What devices and host read."""
    gpus = [each for each in run.devices if not each.is_host]
    hosts = [each for each in run.devices if each.is_host]
    power = Limit("limit", _highest(gpus, "power_limit_w")) if gpus and _highest(gpus, "power_limit_w") else None
    clock = Limit("maximum", _highest(gpus, "clock_max_hz") / 1e6) if gpus and _highest(gpus, "clock_max_hz") else None
    busy_note = "Some kernel ran; it says nothing of how much of the device worked."
    return [
        _device_chart(run, "Busy", gpus, "busy_percent", "percent", note=busy_note),
        _device_chart(run, "Memory in use", gpus, "memory_used_bytes", "bytes", limits=_memory_limits(gpus)),
        _device_chart(run, "Power", gpus, "power_w", "watt", limits=[power] if power else []),
        _device_chart(run, "Clock", gpus, "clock_hz", "mhz", scale=1e-6, limits=[clock] if clock else []),
        _device_chart(run, "Temperature", gpus, "temperature_c", "celsius", from_zero=False),
        _device_chart(run, "Host: all cores", hosts, "busy_percent", "percent"),
        _device_chart(run, "Host: memory in use", hosts, "memory_used_bytes", "bytes", limits=_memory_limits(hosts)),
    ]


def learning_charts(run: RunColumns) -> list[Html | None]:
    """Loss and what steers the update: to see that it is the same training."""
    charts: list[Html | None] = []
    for title, name in (
        ("Loss", "loss"),
        ("Learning rate", "learning_rate"),
        ("Gradient norm", "grad_norm"),
        ("Loss scale", "loss_scale"),
    ):
        lines = _lines(run.processes[:1], lambda each, key=name: each.values[key], "all ranks")
        charts.append(
            line_chart(title, lines, y_kind="number", x_kind=_x_kind(run), span=run.span, from_zero=name != "loss")
        )
    return charts


def _pooled(run: RunColumns, name: str) -> Floats:
    """A figure of all processes, one behind the other."""
    return np.concatenate([each.values[name] for each in run.processes]) if run.processes else np.empty(0)


# -- lines -------------------------------------------------------------------------------------------------------------


def _x_kind(run: RunColumns) -> Kind:
    return "s" if run.in_time else "count"


def _lines(
    processes: Sequence[ProcessColumns], values: Callable[[ProcessColumns], Floats], together: str
) -> list[Series]:
    """One line a process while they can be told apart, else all as one with its spread."""
    if not processes:
        return []
    if len(processes) <= MOST_LINES:
        alone = len(processes) == 1
        return [Series(p.name, p.x, values(p), f"s{i}", band=alone, gaps=False) for i, p in enumerate(processes, 1)]
    x = np.concatenate([each.x for each in processes])
    return [Series(together, x, np.concatenate([values(each) for each in processes]), gaps=False)]


def _spread_note(run: RunColumns) -> str | None:
    if max(map(len, run.processes), default=0) < 2 * MOST_BINS or 1 < len(run.processes) <= MOST_LINES:
        return None
    return "Line: median. Dark: eight steps of ten. Pale: the fastest and the slowest."


def _rates(processes: Sequence[ProcessColumns], name: str, shown: str | None = None) -> list[Series]:
    """Of all processes together, since ranks step together. Those that did not count in a step, as happens with tokens,
    are taken to have had as many as those that did."""
    if not processes or not all(np.isfinite(each.values[name]).any() for each in processes):
        return []
    first = processes[0]
    alike = [each for each in processes if len(each) == len(first)]
    counts = np.array([each.values[name] for each in alike])
    known = np.isfinite(counts).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.nansum(counts, axis=0) / known * len(alike) / first.values["wall_s"]
    return [Series(shown or name, first.x, rate, gaps=False)] if len(alike) == len(processes) else []


# -- timelines ---------------------------------------------------------------------------------------------------------


def _event_lanes(run: RunColumns, events: Sequence[EventRecord]) -> Html | None:
    """One lane a kind; what took no time that is known is a mark."""
    if run.start_ns is None or not events or run.span is None:
        return None
    found = sorted({event.kind for event in events})
    colours = {kind: EVENT_COLOURS.get(kind, f"s{i % MOST_LINES + 1}") for i, kind in enumerate(found)}
    shortest = run.span[1] / 1000
    lanes = []
    for position, kind in enumerate(found):
        members = [event for event in events if event.kind == kind]
        start = np.array([(event.at_ns - run.start_ns) / 1e9 for event in members])
        duration = np.array([max(shortest, (event.duration_ms or 0.0) / 1e3) for event in members])
        lanes.append(Lane(f"{kind} ({len(members):,})", start, duration, np.full(len(members), position)))
    return timeline("What happened now and then", lanes, colours, x_kind="s", span=run.span, aligned=True)


def _middle_steps(processes: Sequence[ProcessColumns]) -> tuple[int, int] | None:
    steps = processes[0].values["step"] if processes else np.empty(0)
    if len(steps) < 2:
        return None
    first = max(0, len(steps) // 2 - SIDE_BY_SIDE_STEPS // 2)
    return int(steps[first]), int(steps[min(len(steps), first + SIDE_BY_SIDE_STEPS) - 1])


def _step_lane(process: ProcessColumns, first: int, last: int) -> Lane:
    """Phases of these steps, laid one behind the other from each step's begin; in milliseconds."""
    values = process.values
    rows = np.flatnonzero((values["step"] >= first) & (values["step"] <= last) & np.isfinite(values["wall_s"]))
    durations = np.nan_to_num(np.array([values[f"{phase}_ms"][rows] for phase in PHASES]))
    begins = 1e3 * (process.x[rows] - values["wall_s"][rows])
    starts = begins + np.vstack([np.zeros(len(rows)), durations.cumsum(axis=0)[:-1]])
    kinds = np.repeat(np.arange(len(PHASES)), len(rows))
    labels = [f"step {int(step):,}" for step in values["step"][rows]] * len(PHASES)
    return Lane(process.name, starts.ravel(), durations.ravel(), kinds, labels)


# -- devices -----------------------------------------------------------------------------------------------------------


def _device_chart(
    run: RunColumns,
    title: str,
    devices: Sequence[DeviceColumns],
    name: str,
    kind: Kind,
    *,
    scale: float = 1.0,
    from_zero: bool = True,
    limits: Sequence[Limit] = (),
    note: str | None = None,
) -> Html | None:
    read = [each for each in devices if np.isfinite(each.values[name]).any()]
    if len(read) > MOST_LINES:
        x = np.concatenate([each.x for each in read])
        lines = [Series(f"{len(read)} devices", x, scale * np.concatenate([each.values[name] for each in read]))]
    else:
        alone = len(read) == 1
        lines = [Series(d.name, d.x, scale * d.values[name], f"s{i}", band=alone) for i, d in enumerate(read, 1)]
    span = run.span if run.start_ns is not None else None
    return line_chart(title, lines, y_kind=kind, x_kind="s", from_zero=from_zero, limits=limits, span=span, note=note)


def _memory_limits(devices: Sequence[DeviceColumns]) -> list[Limit]:
    total = _highest([each for each in devices if not each.is_host] or devices, "memory_total_bytes")
    return [Limit("all there is", total)] if total else []


def _highest(devices: Sequence[DeviceColumns], name: str) -> float:
    known = [each.values[name][np.isfinite(each.values[name])] for each in devices]
    return max((float(column.max()) for column in known if len(column)), default=0.0)
