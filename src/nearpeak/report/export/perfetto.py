"""A recording as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: a process a rank, a lane a phase.

Written piece by piece, so that a long run needs no more memory than a short one; a name that ends in .gz is packed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from nearpeak.errors import StorageError
from nearpeak.recording import PHASES, Recording
from nearpeak.report.run_columns import DeviceColumns, ProcessColumns, RunColumns, read_run
from nearpeak.report.wording import PHASE_NAMES

__all__ = ["trace_events", "write_perfetto"]

Event = dict[str, Any]
STEP_LANE, EVENT_LANE, FIRST_PHASE_LANE = 1, 2, 10
DEVICE_PROCESS = 1_000_000
"""Above every rank."""
COUNTERS = {"allocated_bytes": "allocated bytes", "peak_bytes": "peak bytes", "rss_bytes": "resident bytes"}
STEP_FIGURES = ("loss", "learning_rate", "grad_norm", "samples", "tokens", "padded_tokens")
READINGS = {
    "busy_percent": "busy %",
    "memory_used_bytes": "memory used, bytes",
    "power_w": "power, W",
    "clock_hz": "clock, Hz",
    "temperature_c": "temperature, °C",
}
NOTE = "How long each phase of a step took is measured; inside a step they stand in their usual order."


def write_perfetto(recording: Recording, path: Path) -> int:
    """Write the trace; returns how many events it has."""
    count = 0
    with _opened(path) as file:
        file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps({"source": "nearpeak", "note": NOTE}))
        file.write(',"traceEvents":[\n')
        for event in trace_events(recording):
            file.write((",\n" if count else "") + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
            count += 1
        file.write("\n]}\n")
    return count


def trace_events(recording: Recording) -> Iterator[Event]:
    """In the JSON form that Perfetto reads; times in microseconds since the first step began."""
    run = read_run(recording)
    for process in run.processes:
        yield from _names(process)
        yield from _steps(process, run.in_time)
    yield from _happenings(recording, run)
    for position, device in enumerate(run.devices):
        yield from _readings(device, DEVICE_PROCESS + position)


# -- steps -------------------------------------------------------------------------------------------------------------


def _names(process: ProcessColumns) -> Iterator[Event]:
    number = process.record.process
    yield _name("process_name", number, 0, f"{process.name} (pid {process.record.pid})")
    yield _name("thread_name", number, STEP_LANE, "steps")
    yield _name("thread_name", number, EVENT_LANE, "now and then")
    for lane, phase in enumerate(PHASES, FIRST_PHASE_LANE):
        yield _name("thread_name", number, lane, PHASE_NAMES[phase])
        yield {"ph": "M", "name": "thread_sort_index", "pid": number, "tid": lane, "args": {"sort_index": lane}}


def _name(kind: str, process: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}


def _steps(process: ProcessColumns, in_time: bool) -> Iterator[Event]:
    """Each step, its phases one behind the other, and its memory as it ends."""
    if not in_time:  # without any duration there is nothing to lay on a time line
        return
    values, number = process.values, process.record.process
    durations_us = 1e3 * np.nan_to_num(np.array([values[f"{phase}_ms"] for phase in PHASES]))
    walls_us = 1e6 * np.nan_to_num(values["wall_s"])
    begins_us = 1e6 * process.x - walls_us
    for row in range(len(process)):
        begin = float(begins_us[row])
        name = f"step {int(values['step'][row])}"
        figures = _known({figure: values[figure][row] for figure in STEP_FIGURES})
        yield _slice(name, number, STEP_LANE, begin, float(walls_us[row]), figures)
        yield from _phases(number, begin, durations_us[:, row])
        memory = _known({shown: values[column][row] for column, shown in COUNTERS.items()})
        if memory:
            at = begin + float(walls_us[row])
            yield {"ph": "C", "name": "memory", "pid": number, "ts": round(at, 3), "args": memory}


def _phases(number: int, begin_us: float, durations_us: np.ndarray) -> Iterator[Event]:
    for lane, (phase, duration) in enumerate(zip(PHASES, durations_us, strict=True), FIRST_PHASE_LANE):
        if duration > 0:
            yield _slice(PHASE_NAMES[phase], number, lane, begin_us, float(duration), {})
            begin_us += float(duration)


def _slice(name: str, process: int, lane: int, begin_us: float, duration_us: float, figures: dict[str, Any]) -> Event:
    event: Event = {"ph": "X", "name": name, "pid": process, "tid": lane}
    event |= {"ts": round(begin_us, 3), "dur": round(duration_us, 3)}
    return event | ({"args": figures} if figures else {})


# -- what is beside the steps ------------------------------------------------------------------------------------------


def _happenings(recording: Recording, run: RunColumns) -> Iterator[Event]:
    if run.start_ns is None:
        return
    for event in recording.events:
        begin_us = (event.at_ns - run.start_ns) / 1e3
        figures = _known({"step": event.step}) | _decoded(event.detail)
        if event.duration_ms is not None:
            yield _slice(event.kind, event.process, EVENT_LANE, begin_us, 1e3 * event.duration_ms, figures)
        else:
            place = {"pid": event.process, "tid": EVENT_LANE, "ts": round(begin_us, 3), "s": "p"}
            yield {"ph": "i", "name": event.kind, **place, "args": figures}


def _readings(device: DeviceColumns, number: int) -> Iterator[Event]:
    title = f"{device.name}: {device.model}" if device.model else device.name
    yield _name("process_name", number, 0, title)
    for column, shown in READINGS.items():
        known = np.flatnonzero(np.isfinite(device.values[column]))
        for row in known:
            at, value = round(1e6 * float(device.x[row]), 3), float(device.values[column][row])
            yield {"ph": "C", "name": shown, "pid": number, "ts": at, "args": {"value": value}}


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    """What was not measured is left out: JSON has no NaN."""
    pairs: Iterable[tuple[str, Any]] = ((n, v) for n, v in figures.items() if v is not None and np.isfinite(v))
    return {name: float(value) for name, value in pairs}


def _decoded(detail: str) -> dict[str, Any]:
    try:
        decoded = json.loads(detail)
    except ValueError:
        return {"detail": detail}
    return decoded if isinstance(decoded, dict) else {"detail": decoded}


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
            yield file  # pyright: ignore[reportReturnType]
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}.") from None
