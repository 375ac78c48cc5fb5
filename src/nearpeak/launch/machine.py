"""Readings of this machine as rows of a recording."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.live.sampler import DeviceSampler
from nearpeak.hardware.reading import Device, Reading
from nearpeak.recording.schema import ReadingRecord

__all__ = ["MachineReader"]

HOST = -1


class MachineReader:
    """Reads the host and its devices; call it once a second or so. A context manager, of the thread that reads."""

    def __init__(self, sampler: DeviceSampler | None = None) -> None:
        self._devices = sampler or DeviceSampler()

    def __enter__(self) -> Self:
        self._devices.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._devices.close()

    def __call__(self) -> list[ReadingRecord]:
        """Now. MIG instances are left to the readings of their card."""
        snapshot = self._devices.read()
        devices = {device.key: device for device in snapshot.devices}
        cards = [reading for reading in snapshot.readings if reading.mig is None]
        return [_host_record(snapshot.host), *(_device_record(each, devices.get(each.key)) for each in cards)]


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


def _device_record(reading: Reading, device: Device | None) -> ReadingRecord:
    reasons = reading.throttle_reasons
    return ReadingRecord(
        at_ns=reading.at_ns,
        device=reading.device,
        name=device.name if device is not None else None,
        busy_percent=reading.busy_percent,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_total_bytes,
        power_w=reading.power_w,
        power_limit_w=reading.power_limit_w,
        clock_hz=reading.clock_hz,
        clock_max_hz=reading.clock_max_hz,
        temperature_c=reading.temperature_c,
        throttle_reasons=None if reasons is None else ",".join(reasons),
    )
