"""`HostReading`: what the machine around the devices does at one moment: cores, memory, disks, network, limits.

Rates need two moments: `HostSampler` keeps the one before, and its first reading has none of them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

__all__ = ["HOST_KEY", "HostReading", "HostSampler"]

HOST_KEY = "host"
CORE = "core_percent."
SECTOR_BYTES = 512
"""Of /proc/diskstats, whatever the disk's own are."""
VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""What lies on other disks, or in memory: counted there already."""
VIRTUAL_NETS = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "tun", "tap", "bond")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """What is unknown, or cannot be known from one moment, is None."""

    at_ns: int
    """Unix time."""
    cpu_percent: float | None = None
    """All cores together: 100 is every one busy."""
    core_percent: tuple[float, ...] | None = None
    """Each core."""
    iowait_percent: float | None = None
    """Time in which cores idled while something waited for a disk."""
    cpu_share_of_limit_percent: float | None = None
    """Of the CPU time that the container may use, where one is set."""
    throttled_percent: float | None = None
    """Time in which the container was held back because it had used its CPU time up."""
    runnable: int | None = None
    """Threads that run or wait for a core."""
    load_1min: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_cached_bytes: int | None = None
    """The page cache: files kept in memory."""
    swap_used_bytes: int | None = None
    group_memory_bytes: int | None = None
    """In use by the container."""
    group_memory_limit_bytes: int | None = None
    group_cores: float | None = None
    """Cores' worth of CPU time that the container may use."""
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    net_received_bytes_per_s: float | None = None
    net_sent_bytes_per_s: float | None = None

    @property
    def key(self) -> str:
        return HOST_KEY

    @property
    def busiest_core_percent(self) -> float | None:
        return max(self.core_percent) if self.core_percent else None

    def to_cells(self) -> dict[str, Any]:
        """Flat: one entry a figure and a core."""
        cells = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "core_percent"}
        cells = {name: value for name, value in cells.items() if value is not None}
        return cells | {f"{CORE}{core}": value for core, value in enumerate(self.core_percent or ())}

    @classmethod
    def from_cells(cls, cells: dict[str, Any]) -> Self:
        """The reverse; entries that another version has are left out."""
        known = {each.name for each in fields(cls)}
        cores = tuple(cells[name] for name in cells if name.startswith(CORE) and cells[name] is not None)
        plain = {name: value for name, value in cells.items() if name in known}
        return cls(**plain, core_percent=cores or None)


@dataclass(frozen=True, slots=True)
class Counters:
    """What only grows: two of these make the rates of a reading. Times are in the kernel's ticks or in seconds."""

    at_s: float
    busy: tuple[float, ...] | None
    total: tuple[float, ...] | None
    iowait: float | None
    disk: tuple[int, int] | None
    net: tuple[int, int] | None
    group_cpu_s: float | None
    group_throttled_s: float | None


class HostSampler:
    """Reads /proc and control groups by itself on Linux, and asks psutil elsewhere."""

    def __init__(self, root: Path = Path("/")) -> None:
        from nearpeak.hardware.host import read_cgroup_cores, read_cgroup_memory

        self._root = root
        self._is_linux = (root / "proc/stat").exists()
        self._cores = read_cgroup_cores(root)
        self._memory_limit = read_cgroup_memory(root)
        self._group = _group_folder(root)
        self._before: Counters | None = None

    def read(self) -> HostReading:
        """Now; rates since the last call."""
        now = self._counters()
        before, self._before = self._before, now
        rates = {} if before is None or now.at_s <= before.at_s else _rates(before, now, self._cores)
        return HostReading(
            at_ns=time.time_ns() // 1_000_000 * 1_000_000,
            group_cores=self._cores,
            group_memory_limit_bytes=self._memory_limit,
            group_memory_bytes=_read_number(f"{self._group}/memory.current") if self._group else None,
            **rates,
            **(self._linux_state() if self._is_linux else _psutil_state()),
        )

    def _counters(self) -> Counters:
        at_s = time.monotonic()
        if not self._is_linux:
            return _psutil_counters(at_s)
        busy, total, iowait = _read_cores(self._read("proc/stat"))
        group = self._group_times()
        disk, net = _read_disks(self._read("proc/diskstats")), _read_nets(self._read("proc/net/dev"))
        return Counters(at_s, busy, total, iowait, disk, net, *group)

    def _group_times(self) -> tuple[float | None, float | None]:
        if self._group is None:
            return None, None
        entries = dict(line.split(" ", 1) for line in _text(f"{self._group}/cpu.stat").splitlines() if " " in line)
        used, held = entries.get("usage_usec"), entries.get("throttled_usec")
        return (int(used) / 1e6 if used else None), (int(held) / 1e6 if held else None)

    def _linux_state(self) -> dict[str, Any]:
        memory = _read_memory(self._read("proc/meminfo"))
        load = self._read("proc/loadavg").split()
        runnable = load[3].partition("/")[0] if len(load) > 3 else ""
        swap = memory.get("SwapTotal"), memory.get("SwapFree")
        return {
            # The reader itself runs at this moment and is none of the load.
            "runnable": max(0, int(runnable) - 1) if runnable.isdigit() else None,
            "load_1min": float(load[0]) if load else None,
            "memory_total_bytes": memory.get("MemTotal"),
            "memory_available_bytes": memory.get("MemAvailable"),
            "memory_cached_bytes": memory.get("Cached"),
            "swap_used_bytes": None if swap[0] is None or swap[1] is None else swap[0] - swap[1],
        }

    def _read(self, name: str) -> str:
        return _text(f"{self._root}/{name}")


def _text(path: Path | str) -> str:
    """What is read ten times a second is named by text: the parts of a path made anew each time pass through the
    interpreter's table of names, which is laid out anew, and larger, for all that came and went."""
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def _read_number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _group_folder(root: Path) -> Path | None:
    """This process's control group, version 2; inside a container it is the mount itself."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            mount = root / "sys/fs/cgroup"
            folder = mount / line[3:].lstrip("/")
            return next((each for each in (folder, mount) if (each / "cpu.stat").exists()), None)
    return None


def _read_cores(stat: str) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, float | None]:
    """Busy and total ticks of each core, and the ticks of all in which they waited for disks."""
    busy, total, iowait = [], [], None
    for line in stat.splitlines():
        if not line.startswith("cpu"):
            break
        name, *numbers = line.split()
        ticks = [int(number) for number in numbers[:8]]  # guest time is inside user time already
        if name == "cpu":
            iowait = float(ticks[4]) if len(ticks) > 4 else None
            continue
        total.append(float(sum(ticks)))
        busy.append(float(sum(ticks) - sum(ticks[3:5])))
    return (tuple(busy), tuple(total), iowait) if total else (None, None, None)


def _read_disks(text: str) -> tuple[int, int] | None:
    """Bytes read and written by whole disks since the machine was started."""
    read = written = 0
    seen: list[str] = []
    for line in text.splitlines():
        columns = line.split()
        if len(columns) < 10 or columns[2].startswith(VIRTUAL_DISKS):
            continue
        name = columns[2]
        if any(name.startswith(disk) and name != disk for disk in seen):
            continue  # a partition of a disk that is counted
        seen.append(name)
        read += int(columns[5]) * SECTOR_BYTES
        written += int(columns[9]) * SECTOR_BYTES
    return (read, written) if text else None


def _read_nets(text: str) -> tuple[int, int] | None:
    """Bytes received and sent by physical interfaces."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = rest.split()
        if len(columns) >= 9 and not name.strip().startswith(VIRTUAL_NETS):
            received += int(columns[0])
            sent += int(columns[8])
    return (received, sent) if text else None


def _read_memory(text: str) -> dict[str, int]:
    entries = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            entries[name] = int(number[0]) * 1024
    return entries


def _rates(before: Counters, now: Counters, cores: float | None) -> dict[str, Any]:
    span_s = now.at_s - before.at_s
    rates: dict[str, Any] = _core_rates(before, now)
    for names, a, b in (
        (("disk_read_bytes_per_s", "disk_written_bytes_per_s"), before.disk, now.disk),
        (("net_received_bytes_per_s", "net_sent_bytes_per_s"), before.net, now.net),
    ):
        if a is not None and b is not None:
            # A disk or interface that went takes its count along.
            rates |= {name: max(0.0, round((y - x) / span_s)) for name, x, y in zip(names, a, b, strict=True)}
    if cores and now.group_cpu_s is not None and before.group_cpu_s is not None:
        rates["cpu_share_of_limit_percent"] = round(100 * (now.group_cpu_s - before.group_cpu_s) / span_s / cores, 1)
    if now.group_throttled_s is not None and before.group_throttled_s is not None:
        rates["throttled_percent"] = round(100 * (now.group_throttled_s - before.group_throttled_s) / span_s, 1)
    return rates


def _core_rates(before: Counters, now: Counters) -> dict[str, Any]:
    if not (before.busy and before.total and now.busy and now.total) or len(before.busy) != len(now.busy):
        return {}
    spans = [b - a for a, b in zip(before.total, now.total, strict=True)]
    work = [b - a for a, b in zip(before.busy, now.busy, strict=True)]
    whole = sum(spans)
    if whole <= 0:
        return {}
    each = tuple(_percent(w, s) for w, s in zip(work, spans, strict=True))
    rates: dict[str, Any] = {"core_percent": each, "cpu_percent": _percent(sum(work), whole)}
    if before.iowait is not None and now.iowait is not None:
        rates["iowait_percent"] = _percent(now.iowait - before.iowait, whole)
    return rates


def _percent(part: float, whole: float) -> float:
    return round(min(100.0, max(0.0, 100 * part / whole)), 1) if whole > 0 else 0.0


def _psutil_counters(at_s: float) -> Counters:
    import psutil

    times = psutil.cpu_times(percpu=True)
    total = tuple(sum(core) for core in times)
    busy = tuple(sum(core) - core.idle for core in times)
    disk, net = psutil.disk_io_counters(), psutil.net_io_counters()
    return Counters(
        at_s,
        busy,
        total,
        None,
        None if disk is None else (disk.read_bytes, disk.write_bytes),
        None if net is None else (net.bytes_recv, net.bytes_sent),
        None,
        None,
    )


def _psutil_state() -> dict[str, Any]:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "memory_cached_bytes": getattr(memory, "cached", None),
        "swap_used_bytes": swap.used,
    }
