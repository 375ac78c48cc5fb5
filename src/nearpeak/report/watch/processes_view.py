"""Processes as lines: sorted, filtered, one of them chosen."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.hardware.live.sampler import Snapshot
from nearpeak.hardware.reading import ProcessUse
from nearpeak.report.watch.lines import UNKNOWN, Line, fit, gib_text, span

__all__ = ["SORTS", "ProcessRow", "process_header", "process_line", "process_rows"]

SORTS = ("memory", "busy", "cpu", "pid")
NARROW = 64


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process on one device."""

    device: str
    use: ProcessUse


def process_rows(snapshot: Snapshot, sort: str, words: str) -> list[ProcessRow]:
    """Of all devices; a MIG instance's stand on the instance, not again on its card."""
    on_instances = {
        (reading.device, use.pid)
        for reading in snapshot.readings
        if reading.mig is not None
        for use in reading.processes or ()
    }
    rows = [
        ProcessRow(reading.key, use)
        for reading in snapshot.readings
        for use in reading.processes or ()
        if reading.mig is not None or (reading.device, use.pid) not in on_instances
    ]
    return sorted((row for row in rows if _matches(row, words)), key=lambda row: _order(row, sort))


def _matches(row: ProcessRow, words: str) -> bool:
    use = row.use
    text = " ".join(
        filter(None, (str(use.pid), use.user, use.name, use.command, use.container, use.slurm_job, row.device))
    )
    return all(word in text.lower() for word in words.lower().split())


def _order(row: ProcessRow, sort: str) -> tuple[float, int]:
    figures = {"memory": row.use.memory_bytes, "busy": row.use.busy_percent, "cpu": row.use.cpu_percent}
    return (0.0 if sort == "pid" else -(figures[sort] or 0), row.use.pid)


def process_header(width: int) -> Line:
    """What stands above the processes."""
    text = "    PID DEV   GiB" if width < NARROW else "    PID DEV  USER      GiB  BUSY  CPU%  JOB            COMMAND"
    if width < NARROW:
        text += "  COMMAND"
    return fit([span(text, "title")], width)


def process_line(row: ProcessRow, width: int, *, chosen: bool) -> Line:
    """One process; narrow terminals get what tells it from the others."""
    use = row.use
    command = use.command or use.name or "not visible from here"
    if width < NARROW:
        text = f"{use.pid:7} {row.device:4}{gib_text(use.memory_bytes)}  {command}"
    else:
        job = f"slurm:{use.slurm_job}" if use.slurm_job else use.container or ""
        text = (
            f"{use.pid:7} {row.device:4} {(use.user or UNKNOWN)[:7]:7} {gib_text(use.memory_bytes)} "
            f"{_percent(use.busy_percent)} {_percent(use.cpu_percent)}  {job[:14]:14} {command}"
        )
    return fit([span(text, "chosen" if chosen else "")], width)


def _percent(value: float | None) -> str:
    return f"{UNKNOWN:>5}" if value is None else f"{value:4.0f}%"
