"""The whole view as lines, from what was read and what the user chose. Pure: the same input, the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nearpeak.finding import Finding
from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.live.sampler import Snapshot
from nearpeak.report.watch.devices_view import device_lines
from nearpeak.report.watch.history import History
from nearpeak.report.watch.lines import (
    UNKNOWN,
    Line,
    bar,
    fit,
    gib_text,
    level_style,
    percent_text,
    rate_text,
    span,
    spark,
)
from nearpeak.report.watch.processes_view import process_header, process_line, process_rows

__all__ = ["RunLine", "ViewState", "no_device_text", "screen_lines"]

NARROW = 64
MOST_FINDINGS = 4
HELP = (
    "q        leave",
    "s        sort processes: by memory, busy, cpu, pid",
    "f or /   show only processes whose line has these words",
    "p        pause; the devices are still read",
    "up down  choose a process",
    "k        end the chosen process (asks first)",
    "r        record what is read, or stop recording",
    "+ -      read more or less often",
    "←  →     in a replay: back or on by ten readings",
    "?        this help",
)
SEVERITY_STYLES = {"critical": "bad", "warning": "warn", "info": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One training run on this machine that leaves a recording."""

    name: str
    pid: int
    step: int
    steps_per_s: float | None
    shares: tuple[tuple[str, float], ...]
    """Phase and its share of the step, largest first."""


@dataclass(slots=True, kw_only=True)
class ViewState:
    """What the user chose, and what the view has to tell besides the readings."""

    interval_s: float = 1.0
    sort: str = "memory"
    words: str = ""
    typing: bool = False
    """The user types `words`."""
    paused: bool = False
    chosen: int = 0
    """Of the processes shown."""
    asking: str | None = None
    """A question that waits for yes or no."""
    message: str = ""
    helping: bool = False
    recording: str | None = None
    """Folder that is written."""
    replay: str | None = None
    """File that is shown instead of this machine."""
    findings: Sequence[Finding] = ()
    runs: Sequence[RunLine] = field(default_factory=tuple)


def screen_lines(history: History, state: ViewState, width: int, height: int) -> list[Line]:
    """At most `height` lines of `width` each; everything, where height is 0. The last says which keys do what."""
    snapshot = history.latest
    if state.helping:
        body = [fit([span(text)], width) for text in HELP]
    elif snapshot is None:
        body = [fit([span("Asking the drivers…", "dim")], width)]
    else:
        body = _body(snapshot, history, state, width, height - 2 if height else 0)
    lines = [_title(snapshot, state, width), *body]
    if not height:
        return lines
    lines = lines[: height - 1]
    empty = [fit([], width)] * (height - 1 - len(lines))
    return [*lines, *empty, _foot(state, width)]


def _body(snapshot: Snapshot, history: History, state: ViewState, width: int, room: int) -> list[Line]:
    fixed = [*_host(snapshot.host, history, width), *_runs(state.runs, width), *_findings(state.findings, width)]
    devices = _devices(snapshot, history, width, room - len(fixed) if room else 0)
    left = max(0, room - len(devices) - len(fixed)) if room else 1000
    return [*devices, *fixed, *_processes(snapshot, state, width, left)]


def _title(snapshot: Snapshot | None, state: ViewState, width: int) -> Line:
    at = "" if snapshot is None else datetime.fromtimestamp(snapshot.at_ns / 1e9).strftime("%H:%M:%S")
    drivers = {device.driver_version for device in snapshot.devices if device.driver_version} if snapshot else set()
    parts = [span("nearpeak watch", "bold"), span(f"  {state.replay or f'{state.interval_s:g} s'}  {at}")]
    if drivers and width >= NARROW:
        parts.append(span(f"  driver {', '.join(sorted(drivers))}", "dim"))
    if state.paused:
        parts.append(span("  paused", "warn"))
    if state.recording:
        parts.append(span(f"  recording to {state.recording}", "bad"))
    return fit(parts, width)


def _devices(snapshot: Snapshot, history: History, width: int, room: int) -> list[Line]:
    if not snapshot.readings:
        return [
            fit([span(text, "warn" if place == 0 else "dim")], width)
            for place, text in enumerate(no_device_text(snapshot))
        ]
    pairs = list(zip(snapshot.devices, snapshot.readings, strict=True))
    detail = width >= NARROW and (not room or 2 * len(pairs) + 3 <= room)
    return [line for pair in pairs for line in device_lines(*pair, history, width, detail=detail)]


def no_device_text(snapshot: Snapshot) -> list[str]:
    """Why there is none, per vendor."""
    reasons = [f"{s.vendor}: {s.detail or 'the driver is not installed'}" for s in snapshot.sources if s.state != "ok"]
    found = [f"{s.vendor}: the driver answers and knows no device" for s in snapshot.sources if s.state == "ok"]
    return ["No GPU was found; this is the host alone.", *reasons, *found]


def _host(host: HostReading, history: History, width: int) -> list[Line]:
    """Nothing, where a log knows nothing of its host."""
    if host.memory_total_bytes is None and host.cpu_percent is None:
        return []
    busiest = host.busiest_core_percent
    used = None if host.memory_total_bytes is None else host.memory_total_bytes - (host.memory_available_bytes or 0)
    memory = None if used is None or not host.memory_total_bytes else 100 * used / host.memory_total_bytes
    cores = len(host.core_percent or ()) or None
    if width < NARROW:
        return [
            fit(
                [span("host  ", "bold"), span(f"cpu{percent_text(host.cpu_percent)} core{percent_text(busiest)}")],
                width,
            ),
            fit([span(f"      mem {gib_text(used).strip()}/{gib_text(host.memory_total_bytes).strip()}G")], width),
        ]
    first = [
        span("host  ", "bold"),
        span(f"cpu{percent_text(host.cpu_percent)} "),
        span(bar(host.cpu_percent, 10), level_style(host.cpu_percent, 85, 101)),
        span(f"  busiest core{percent_text(busiest)}", "warn" if busiest is not None and busiest >= 95 else ""),
        span(f"  run queue {UNKNOWN if host.runnable is None else host.runnable}/{cores or UNKNOWN}"),
        span(f"  wait{percent_text(host.iowait_percent)} "),
    ]
    taken = sum(len(text) for text, _ in first)
    first.append(span(spark(history.points("host", width - taken), width - taken), "ok"))
    second = [
        span(f"      mem {gib_text(used).strip()}/{gib_text(host.memory_total_bytes).strip()}G "),
        span(bar(memory, 8), level_style(memory, 85, 95)),
        span(f"  cache {gib_text(host.memory_cached_bytes).strip()}G", "dim"),
        span(f"  disk ↓{rate_text(host.disk_read_bytes_per_s)} ↑{rate_text(host.disk_written_bytes_per_s)}"),
        span(f"  net ↓{rate_text(host.net_received_bytes_per_s)} ↑{rate_text(host.net_sent_bytes_per_s)}"),
    ]
    return [fit(first, width), fit(second, width), *_group(host, width)]


def _group(host: HostReading, width: int) -> list[Line]:
    """The container's limits, where it has any."""
    parts = []
    if host.group_cores is not None:
        parts.append(f"{percent_text(host.cpu_share_of_limit_percent).strip()} of {host.group_cores:g} cores")
        if host.throttled_percent:
            parts.append(f"held back {host.throttled_percent:.0f}% of the time")
    if host.group_memory_limit_bytes is not None:
        used, limit = gib_text(host.group_memory_bytes).strip(), gib_text(host.group_memory_limit_bytes).strip()
        parts.append(f"{used}/{limit}G memory")
    return [fit([span(f"      container: {', '.join(parts)}")], width)] if parts else []


def _runs(runs: Sequence[RunLine], width: int) -> list[Line]:
    lines = []
    for run in runs:
        rate = "" if run.steps_per_s is None else f"  {run.steps_per_s:.3g} steps/s"
        phases = "  ".join(f"{name} {100 * share:.0f}%" for name, share in run.shares if share >= 0.01)
        lines.append(
            fit([span("run   ", "bold"), span(f"{run.name}  step {run.step:,}{rate}  "), span(phases, "dim")], width)
        )
    return lines


def _findings(findings: Sequence[Finding], width: int) -> list[Line]:
    shown = [
        fit(
            [span("→ ", SEVERITY_STYLES[finding.severity]), span(finding.title, SEVERITY_STYLES[finding.severity])],
            width,
        )
        for finding in findings[:MOST_FINDINGS]
    ]
    more = len(findings) - MOST_FINDINGS
    return [*shown, fit([span(f"  and {more} more", "dim")], width)] if more > 0 else shown


def _processes(snapshot: Snapshot, state: ViewState, width: int, room: int) -> list[Line]:
    rows = process_rows(snapshot, state.sort, state.words)
    if room < 2 or (not rows and not state.words):
        return []
    first = max(0, min(state.chosen - (room - 2), len(rows) - (room - 1))) if len(rows) > room - 1 else 0
    shown = rows[first : first + room - 1]
    lines = [process_line(row, width, chosen=place + first == state.chosen) for place, row in enumerate(shown)]
    return [process_header(width), *lines]


def _foot(state: ViewState, width: int) -> Line:
    if state.asking is not None:
        return fit([span(f"{state.asking} y/n ", "bad")], width)
    if state.typing:
        return fit([span(f"show processes with: {state.words}▏", "chosen")], width)
    if state.message:
        return fit([span(state.message, "warn")], width)
    words = f"  f filter:{state.words}" if state.words else "  f filter"
    return fit([span(f"q leave  s sort:{state.sort}{words}  p pause  k end  r record  ? help", "dim")], width)
