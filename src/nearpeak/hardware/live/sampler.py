"""Everything that this machine has, read together: devices of all vendors, and the host around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from nearpeak.hardware.host_reading import HostReading, HostSampler
from nearpeak.hardware.reading import Device, Reading

__all__ = ["DeviceSampler", "DeviceSource", "Snapshot", "SourceState"]

GPM_PAUSE_S = 0.15
"""Between the two readings that a single look takes: performance counters and host shares need two."""


class DeviceSource(Protocol):
    """The devices of one vendor."""

    @property
    def vendor(self) -> str: ...
    @property
    def state(self) -> Literal["closed", "ok", "missing", "broken"]: ...
    @property
    def detail(self) -> str | None: ...
    @property
    def devices(self) -> list[Device]: ...
    def open(self) -> None: ...
    def read(self) -> list[Reading]: ...
    def ask_slow_now(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Whether a vendor's driver is here and works."""

    vendor: str
    state: Literal["closed", "ok", "missing", "broken"]
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of the machine."""

    at_ns: int
    host: HostReading
    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]
    """In the order of the devices."""
    sources: tuple[SourceState, ...]


class DeviceSampler:
    """Use it as a context manager, from one thread. A driver that hangs costs its patience once, and no more.

    >>> with DeviceSampler() as sampler:
    ...     snapshot = sampler.read()
    """

    def __init__(self, sources: list[DeviceSource] | None = None, host: HostSampler | None = None) -> None:
        self._sources: list[DeviceSource] = _present_sources() if sources is None else sources
        self._host = host or HostSampler()

    def open(self) -> None:
        """Find the devices."""
        for source in self._sources:
            source.open()
        self._host.read()  # rates need one before

    def read(self) -> Snapshot:
        """Now."""
        readings = [reading for source in self._sources for reading in source.read()]
        devices = [device for source in self._sources for device in source.devices]
        host = self._host.read()
        return Snapshot(
            at_ns=host.at_ns,
            host=host,
            devices=tuple(devices),
            readings=tuple(readings),
            sources=tuple(SourceState(vendor=s.vendor, state=s.state, detail=s.detail) for s in self._sources),
        )

    def read_once(self, sleep: Callable[[float], Any] | None = None) -> Snapshot:
        """Everything that can be known from one short look, slow questions included."""
        import time

        self.read()
        for source in self._sources:
            source.ask_slow_now()
        (sleep or time.sleep)(GPM_PAUSE_S)
        return self.read()

    def close(self) -> None:
        """Leave the drivers."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _present_sources() -> list[DeviceSource]:
    """NVIDIA always, since its absence is worth a word; others where something speaks for them."""
    from nearpeak.hardware.live.amd_source import AmdSource
    from nearpeak.hardware.live.nvml_source import NvmlSource
    from nearpeak.hardware.live.torch_source import TorchSource

    sources: list[DeviceSource] = [NvmlSource()]
    if AmdSource.is_present():
        sources.append(AmdSource())
    if TorchSource.is_present():
        sources.append(TorchSource())
    return sources
