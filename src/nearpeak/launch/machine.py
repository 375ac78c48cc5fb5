"""Readings of this machine as rows of a recording."""

from __future__ import annotations

from nearpeak.hardware.host_reading import HostReading, HostSampler
from nearpeak.recording.schema import ReadingRecord

__all__ = ["MachineReader"]

HOST = -1


class MachineReader:
    """Reads the host and its devices; call it once a second or so."""

    def __init__(self) -> None:
        self._host = HostSampler()
        self._host.read()  # rates need a moment before

    def __call__(self) -> list[ReadingRecord]:
        """Now."""
        return [_host_record(self._host.read())]


def _host_record(reading: HostReading) -> ReadingRecord:
    total, available = reading.memory_total_bytes, reading.memory_available_bytes
    return ReadingRecord(
        at_ns=reading.at_ns,
        device=HOST,
        busy_percent=reading.cpu_percent,
        busiest_core_percent=reading.busiest_core_percent,
        running_threads=reading.runnable,
        memory_total_bytes=total,
        memory_used_bytes=None if total is None or available is None else total - available,
        page_cache_bytes=reading.memory_cached_bytes,
    )
