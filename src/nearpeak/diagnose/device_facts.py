"""Facts about one device over the time that was watched, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DeviceFacts", "HostFacts", "Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """How many readings say so, of those that could."""

    count: int = 0
    of: int = 0

    @property
    def share(self) -> float:
        """0 to 1; 0 where no reading could say."""
        return self.count / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Of the machine around the devices, over the same time."""

    readings: int = 0
    one_core: Share = Share()
    """Readings in which one core was full and the others together were not."""
    cpu_percent: float | None = None
    """Mean of all cores together."""
    cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What is unknown is None; what no reading could say is a `Share` of none. Limits stand in `device_limits`."""

    key: str
    """``0``, or ``0:2`` for a MIG instance."""
    name: str | None = None
    source: str
    """For evidence: ``27 readings of device 0 in gpu.csv``."""
    readings: int
    span_s: float | None = None
    """From the first reading to the last."""
    lost: Share = Share()
    fault: str | None = None

    busy_percent: float | None = None
    """Mean."""
    busy: Share = Share()
    idle: Share = Share()
    memory_used_share: float | None = None
    """Largest, 0 to 1."""
    memory_used_bytes: int | None = None
    """Largest."""
    held_idle: Share = Share()
    """Memory held, and idle."""
    held_busy: Share = Share()
    """Memory held, and not idle."""
    processes: int | None = None
    """Most at a time."""
    empty_busy: Share = Share()
    """Full utilisation although nothing was on the device."""
    empty_busy_percent: float | None = None
    """Largest of those."""
    empty_busy_bytes: int | None = None
    persistence: bool | None = None

    busy_power_share: float | None = None
    """Mean of power over its limit while busy, 0 to 1."""
    busy_clock_share: float | None = None
    """Mean of the clock over its highest while busy, 0 to 1."""
    busy_sm_percent: float | None = None
    """Mean share of multiprocessors with work while busy."""
    busy_tensor_percent: float | None = None

    blind: Share = Share()
    """Utilisation not supported, though the device drew power as one that works."""
    blind_power_w: float | None = None
    """Largest of those."""
    mig_enabled: bool | None = None

    throttled: dict[str, Share] = field(default_factory=dict)
    """Reason that slows work → readings in which it held while the device was not idle."""
    throttled_s: dict[str, float] = field(default_factory=dict)
    """The same by the driver's own counters, over `counted_s`."""
    counted_s: float | None = None
    throttled_clock_share: float | None = None
    """Mean of the clock over its highest in those readings, 0 to 1."""
    throttled_temperature_c: float | None = None
    """Largest in those readings."""
    at_power_limit: Share = Share()
    """While not idle."""
    most_power_share: float | None = None
    """Largest of power over its limit, 0 to 1 and a little more."""
    power_w: float | None = None
    """Mean."""
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    rated_power_w: float | None = None
    """Of the model, where no reading names a limit: shares of power are then of this."""

    narrow: Share = Share()
    """Fewer lanes than device and slot can use, under load."""
    pcie_width: int | None = None
    """Fewest under load."""
    pcie_width_max: int | None = None
    slow: Share = Share()
    """A lower generation than device and slot can reach, under load."""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_replays: int | None = None
    """While it was watched."""
    nvlink_errors: int | None = None
    """While it was watched."""

    last: dict[str, float] = field(default_factory=dict)
    """Figures of health as last read, by their names in `Reading`."""
    grown: dict[str, float] = field(default_factory=dict)
    """By how much those that count grew while it was watched."""

    @property
    def label(self) -> str:
        """For titles: ``Device 0 (NVIDIA L40S)``."""
        return f"Device {self.key} ({self.name})" if self.name else f"Device {self.key}"
