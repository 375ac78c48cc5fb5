"""From a device log to its `Diagnosis`, and to a `Recording`."""

from __future__ import annotations

from pathlib import Path

from nearpeak import __version__
from nearpeak.diagnose.diagnosis import Diagnosis, conclude
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.reduce_readings import reduce_readings
from nearpeak.hardware.logs.log import DeviceLog, read_log
from nearpeak.hardware.logs.times import NS
from nearpeak.hardware.reading_store import ReadingWriter
from nearpeak.recording import Recording, RunInfo

__all__ = ["diagnose_log", "facts_of_log", "record_log"]

NO_STEPS = "A device log has no steps: which part of a step the time goes to cannot be told from it."
MOST_MESSAGES = 5


def diagnose_log(log: DeviceLog | str | Path) -> Diagnosis:
    """What a log says of the devices in it. Raises `DataError` if the file is no log."""
    read = log if isinstance(log, DeviceLog) else read_log(log)
    return conclude(facts_of_log(read), (NO_STEPS, *read.notes, *_messages(read)))


def facts_of_log(log: DeviceLog) -> Facts:
    """Its readings, reduced by device."""
    return Facts(source=log.source, devices=reduce_readings(log.readings, log.devices, source=log.source))


def _messages(log: DeviceLog) -> list[str]:
    """What the driver said instead of readings, and where the log has holes."""
    told = [event for event in log.events if event.kind in ("message", "clock_change", "gap")]
    said = [f"The log says: {event.values['text']}" for event in told[:MOST_MESSAGES]]
    cut = sum(event.kind == "cut_line" for event in log.events)
    more = [f"{len(told) - MOST_MESSAGES} more events are in the log."] if len(told) > MOST_MESSAGES else []
    return said + more + ([f"{cut} lines are cut; what is whole of them was read."] if cut else [])


def record_log(log: DeviceLog, folder: str | Path, *, force: bool = False) -> Recording:
    """Write a log as a recording, for `nearpeak report` and `nearpeak watch --replay`."""
    run = _run_info(log)
    with ReadingWriter(folder, log.devices, run=run, force=force, keep_all_processes=True) as writer:
        for reading in log.readings:
            writer.add(reading)
    return Recording(folder)


def _run_info(log: DeviceLog) -> RunInfo:
    """Of the machine that was logged, not of this one."""
    from datetime import UTC, datetime

    first_ns = log.readings[0].at_ns if log.readings else 0
    host = next((device.other["host"] for device in log.devices if "host" in device.other), None)
    return RunInfo(
        started_at=datetime.fromtimestamp(first_ns // NS, UTC).isoformat(timespec="seconds"),
        nearpeak_version=__version__,
        python_version="unknown",
        system=log.context.get("os", "unknown"),
        host=host or log.context.get("hostname", "unknown"),
        command=("log", log.source),
        device=next((device.name for device in log.devices if device.name), None),
    )
