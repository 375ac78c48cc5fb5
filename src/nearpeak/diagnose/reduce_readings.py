"""Readings of devices reduced to facts: of a log, of a recording, or of the last minute of a live view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from nearpeak.diagnose import device_limits as limits
from nearpeak.diagnose.device_facts import DeviceFacts, HostFacts, Share
from nearpeak.hardware.gpu import Gpu
from nearpeak.hardware.gpu_table import gpu_of
from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.reading import Device, Reading

__all__ = ["device_facts", "host_facts", "reduce_readings"]

NS = 10**9
VIOLATION = "dmon.pviol [%]"


def reduce_readings(
    readings: Iterable[Reading], devices: Iterable[Device] = (), *, source: str
) -> tuple[DeviceFacts, ...]:
    """Facts of every device, in the order of their numbers. `source` names the readings in evidence."""
    known = {device.key: device for device in devices}
    by_device: dict[str, list[Reading]] = {}
    for reading in readings:
        by_device.setdefault(reading.key, []).append(reading)
    ordered = sorted(by_device.items(), key=lambda item: (item[1][0].device, item[1][0].mig or -1))
    return tuple(device_facts(members, known.get(key), source=source) for key, members in ordered)


def host_facts(readings: Sequence[HostReading]) -> HostFacts:
    """Of the machine."""
    cores = [(r.busiest_core_percent, r.cpu_percent) for r in readings]
    known = [(core, all_) for core, all_ in cores if core is not None and all_ is not None]
    full = [core >= limits.FULL_CORE_PERCENT and all_ < limits.FREE_CPU_PERCENT for core, all_ in known]
    counts = [len(r.core_percent) for r in readings if r.core_percent]
    return HostFacts(
        readings=len(readings),
        one_core=Share(sum(full), len(full)),
        cpu_percent=_mean([all_ for _, all_ in known]),
        cores=max(counts, default=None),
    )


def device_facts(readings: Sequence[Reading], device: Device | None = None, *, source: str) -> DeviceFacts:
    """Of one device; its readings in time. What they lack of size and power is taken from the table of models."""
    first = readings[0]
    gpu = None if device is None or device.mig is not None else gpu_of(device)
    span_s = (readings[-1].at_ns - first.at_ns) / NS
    reduced = _Reduced(readings, gpu)
    return DeviceFacts(
        key=first.key,
        name=None if device is None else device.name,
        source=f"{len(readings)} readings of device {first.key} in {source}",
        readings=len(readings),
        span_s=span_s if span_s > 0 else None,
        lost=_count(readings, lambda r: r.state == "lost"),
        fault=next((r.fault for r in reversed(readings) if r.fault), None),
        **reduced.work(),
        **reduced.misreadings(),
        **reduced.throttling(),
        **reduced.link(),
        **reduced.health(),
    )


def _busy(reading: Reading) -> float | None:
    """Of the device; else what its processes sum to."""
    if reading.busy_percent is not None:
        return reading.busy_percent
    shares = [use.busy_percent for use in reading.processes or () if use.busy_percent is not None]
    return min(100.0, sum(shares)) if shares else None


class _Reduced:
    """Reductions that share what they look at."""

    def __init__(self, readings: Sequence[Reading], gpu: Gpu | None) -> None:
        self._all = readings
        self._busy = [(r, busy) for r in readings if (busy := _busy(r)) is not None]
        self._total = next((r.memory_total_bytes for r in readings if r.memory_total_bytes), None)
        self._set_limit = next((r.power_limit_w for r in reversed(readings) if r.power_limit_w), None)
        self._rated = None if gpu is None or self._set_limit else gpu.max_power_w
        self._limit = self._set_limit or self._rated
        if self._total is None and gpu is not None:
            self._total = gpu.memory_bytes
        self._full = [r for r, busy in self._busy if busy >= limits.BUSY_PERCENT]

    def _memory_share(self, reading: Reading) -> float | None:
        total = reading.memory_total_bytes or self._total
        return None if reading.memory_used_bytes is None or not total else reading.memory_used_bytes / total

    def _holds(self, reading: Reading) -> bool | None:
        share = self._memory_share(reading)
        if share is not None:
            return share >= limits.HELD_SHARE
        return None if reading.memory_used_bytes is None else reading.memory_used_bytes >= limits.HELD_BYTES

    def _power_share(self, reading: Reading) -> float | None:
        limit = reading.power_limit_w or self._limit
        return None if reading.power_w is None or not limit else reading.power_w / limit

    def _draws(self, reading: Reading) -> bool:
        return (self._power_share(reading) or 0.0) >= limits.WORKING_POWER_SHARE

    def work(self) -> dict[str, Any]:
        """How busy, and with what in its memory."""
        held = [(holds, busy) for r, busy in self._busy if (holds := self._holds(r)) is not None]
        idle = [holds and busy <= limits.IDLE_PERCENT for holds, busy in held]
        counts = [len(r.processes) for r in self._all if r.processes is not None]
        return {
            "busy_percent": _mean([busy for _, busy in self._busy]),
            "busy": Share(len(self._full), len(self._busy)),
            "idle": Share(sum(busy <= limits.IDLE_PERCENT for _, busy in self._busy), len(self._busy)),
            "memory_used_share": max((s for r in self._all if (s := self._memory_share(r)) is not None), default=None),
            "memory_used_bytes": max((r.memory_used_bytes for r in self._all if r.memory_used_bytes), default=None),
            "held_idle": Share(sum(idle), len(held)),
            "held_busy": Share(sum(holds and busy > limits.IDLE_PERCENT for holds, busy in held), len(held)),
            "processes": max(counts, default=None),
            "busy_power_share": _mean([s for r in self._full if (s := self._power_share(r)) is not None]),
            "busy_clock_share": _mean([s for r in self._full if (s := _clock_share(r)) is not None]),
            "busy_sm_percent": _mean([r.sm_busy_percent for r in self._full if r.sm_busy_percent is not None]),
            "busy_tensor_percent": _mean([r.tensor_percent for r in self._full if r.tensor_percent is not None]),
        }

    def misreadings(self) -> dict[str, Any]:
        """Figures that say something else than they seem to."""
        empty = [
            r
            for r in self._full
            if r.memory_used_bytes is not None and r.memory_used_bytes <= limits.EMPTY_BYTES and not r.processes
        ]
        unreadable = [r for r in self._all if r.busy_percent is None and r.why_missing("busy_percent") == "unsupported"]
        drawing = [r for r in unreadable if self._draws(r) or any(use.kind != "graphics" for use in r.processes or ())]
        return {
            "empty_busy": Share(len(empty), sum(r.memory_used_bytes is not None for r, _ in self._busy)),
            "empty_busy_percent": max((r.busy_percent or 0.0 for r in empty), default=None),
            "empty_busy_bytes": max((r.memory_used_bytes or 0 for r in empty), default=None),
            "persistence": _last(self._all, "persistence"),
            "blind": Share(len(drawing), len(unreadable)),
            "blind_power_w": max((r.power_w for r in drawing if r.power_w is not None), default=None),
            "mig_enabled": _last(self._all, "mig_enabled"),
        }

    def throttling(self) -> dict[str, Any]:
        """While the device was not idle: an idle one that is held back loses nothing, but heat is trouble always."""
        working = [r for r in self._all if (busy := _busy(r)) is None or busy > limits.IDLE_PERCENT]
        asked = [(r, set(r.slowing)) for r in working if r.slowing is not None]
        always = [set(r.slowing) & limits.TROUBLE for r in self._all if r.slowing is not None]
        names = sorted({name for slowing in (*always, *(each for _, each in asked)) for name in slowing})
        slowed = [r for r, slowing in asked if slowing]
        while_working = [slowing for _, slowing in asked]
        shares = {name: _share_of(always if name in limits.TROUBLE else while_working, name) for name in names}
        near = [s >= limits.NEAR_POWER_LIMIT for r in working if (s := self._power_share(r)) is not None]
        spans = {reason: _grown_over(self._all, figure) for reason, figure in limits.COUNTERS.items()}
        seconds = {reason: grown for reason, (grown, _) in spans.items() if grown}
        return {
            "throttled": shares | _violated(working),
            "throttled_s": seconds,
            "counted_s": max((span for _, span in spans.values()), default=0.0) or None,
            "throttled_clock_share": _mean([s for r in slowed if (s := _clock_share(r)) is not None]),
            "throttled_temperature_c": max((r.temperature_c for r in slowed if r.temperature_c), default=None),
            "at_power_limit": Share(sum(near), len(near)),
            "most_power_share": max((s for r in self._all if (s := self._power_share(r)) is not None), default=None),
            "power_w": _mean([r.power_w for r in self._all if r.power_w is not None]),
            "power_limit_w": self._set_limit,
            "rated_power_w": self._rated,
            "power_limit_default_w": _last(self._all, "power_limit_default_w"),
        }

    def _under_load(self, reading: Reading) -> bool:
        busy = _busy(reading)
        if busy is not None:
            return busy >= limits.LOAD_PERCENT
        return self._draws(reading)

    def link(self) -> dict[str, Any]:
        """Of the host link under load."""
        loaded = [r for r in self._all if self._under_load(r)]
        widths = [(r.pcie_width, r.pcie_width_max) for r in loaded if r.pcie_width and r.pcie_width_max]
        speeds = [
            (r.pcie_generation, r.pcie_generation_max) for r in loaded if r.pcie_generation and r.pcie_generation_max
        ]
        return {
            "narrow": Share(sum(now < most for now, most in widths), len(widths)),
            "pcie_width": min((now for now, _ in widths), default=None),
            "pcie_width_max": max((most for _, most in widths), default=None),
            "slow": Share(sum(now < most for now, most in speeds), len(speeds)),
            "pcie_generation": min((now for now, _ in speeds), default=None),
            "pcie_generation_max": max((most for _, most in speeds), default=None),
        }

    def health(self) -> dict[str, Any]:
        """Trouble, as last read and as grown."""
        last = {name: float(value) for name in limits.HEALTH if (value := _last(self._all, name)) is not None}
        grown = {name: _grown_over(self._all, name)[0] for name in last}
        return {
            "last": last,
            "grown": {name: value for name, value in grown.items() if value},
            "pcie_replays": int(grown["pcie_replays"]) if "pcie_replays" in grown else None,
            "nvlink_errors": int(grown["nvlink_errors"]) if "nvlink_errors" in grown else None,
        }


def _violated(readings: Sequence[Reading]) -> dict[str, Share]:
    """dmon gives the time at the power limit as a share of each second: more than whether there was any."""
    known = [float(r.other[VIOLATION]) for r in readings if isinstance(r.other.get(VIOLATION), int | float)]
    count = round(sum(known) / 100)
    return {"power_cap": Share(min(count, len(known)), len(known))} if known and count else {}


def _share_of(sets: Sequence[set[str]], name: str) -> Share:
    return Share(sum(name in each for each in sets), len(sets))


def _clock_share(reading: Reading) -> float | None:
    return reading.clock_hz / reading.clock_max_hz if reading.clock_hz and reading.clock_max_hz else None


def _grown_over(readings: Sequence[Reading], figure: str) -> tuple[float, float]:
    """By how much a counter grew, and over how many seconds; where it falls, it began anew."""
    known = [(r.at_ns, float(value)) for r in readings if (value := getattr(r, figure)) is not None]
    steps = [max(0.0, after - before) for (_, before), (_, after) in pairwise(known)]
    return sum(steps), (known[-1][0] - known[0][0]) / NS if len(known) > 1 else 0.0


def _last(readings: Sequence[Reading], figure: str) -> Any:
    return next((value for r in reversed(readings) if (value := getattr(r, figure)) is not None), None)


def _count(readings: Sequence[Reading], holds: Callable[[Reading], bool]) -> Share:
    return Share(sum(map(holds, readings)), len(readings))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
