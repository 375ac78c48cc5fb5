"""`Host`: the machine around the devices: system, cores, memory, limits. What cannot be read is None."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "read_cgroup_cores", "read_cgroup_memory", "read_cpu", "read_host", "read_pci_vendors"]

INTERESTING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
DISPLAY_CLASS = 0x03
"""PCI class of display controllers; accelerators without a display carry it too (as 0x0302)."""
ACCELERATOR_CLASS = 0x12
PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
UNLIMITED = 1 << 60
"""Version 1 of cgroups writes a number near 2^63 where no limit is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine, as this process may use it."""

    system: str
    python_version: str
    python_path: str
    cpu_model: str | None
    cpu_flags: tuple[str, ...] | None
    """Those of INTERESTING_FLAGS that the CPU has."""
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None
    """Logical cores that this process may run on (affinity)."""
    cgroup_cores: float | None
    """CPU time that its container may use, in cores; None where nothing limits it."""
    memory_bytes: int | None
    available_memory_bytes: int | None
    cgroup_memory_bytes: int | None
    shared_memory_bytes: int | None
    """Size of /dev/shm, through which loader workers hand over batches."""
    free_shared_memory_bytes: int | None
    pci_vendors: tuple[str, ...] | None
    """Vendors of the display and accelerator devices on the PCI bus, driver or not."""

    @property
    def effective_cores(self) -> float | None:
        """Cores that training can count on: the least of affinity and container limit."""
        limits = [limit for limit in (self.usable_cores or self.logical_cores, self.cgroup_cores) if limit]
        return min(limits) if limits else None

    @property
    def has_native_bf16(self) -> bool | None:
        """Whether the CPU computes in bf16 itself, instead of converting."""
        if self.cpu_flags is None:
            return None
        return any(flag in self.cpu_flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def read_host(root: Path = Path("/")) -> Host:
    """Read this machine; `root` is where its /proc, /sys and /dev are looked for."""
    import psutil

    model, flags = read_cpu(root)
    memory = psutil.virtual_memory()
    shm_bytes, shm_free_bytes = _read_file_system(root / "dev/shm")
    return Host(
        system=platform.platform(),
        python_version=platform.python_version(),
        python_path=sys.executable,
        cpu_model=model,
        cpu_flags=flags,
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(logical=True),
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        cgroup_cores=read_cgroup_cores(root),
        memory_bytes=memory.total,
        available_memory_bytes=memory.available,
        cgroup_memory_bytes=read_cgroup_memory(root),
        shared_memory_bytes=shm_bytes,
        free_shared_memory_bytes=shm_free_bytes,
        pci_vendors=read_pci_vendors(root),
    )


def read_cpu(root: Path) -> tuple[str | None, tuple[str, ...] | None]:
    """Model and interesting flags, from /proc/cpuinfo; (None, None) where there is none."""
    text = _read_text(root / "proc/cpuinfo")
    if text is None:
        return platform.processor() or None, None
    entries: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            entries.setdefault(key.strip().lower(), value.strip())
    flags = entries.get("flags", entries.get("features"))
    present = None if flags is None else tuple(flag for flag in INTERESTING_FLAGS if flag in flags.split())
    return entries.get("model name"), present


def read_cgroup_cores(root: Path) -> float | None:
    """The container's CPU limit in cores: the least on the way up from this process's group."""
    limits = [_quota(text) for text in _group_texts(root, "", "cpu.max")]
    for quota, period in zip(
        _group_texts(root, "cpu", "cpu.cfs_quota_us"), _group_texts(root, "cpu", "cpu.cfs_period_us"), strict=False
    ):
        limits.append(_quota(f"{quota} {period}"))
    return min((limit for limit in limits if limit is not None), default=None)


def read_cgroup_memory(root: Path) -> int | None:
    """The container's memory limit."""
    texts = _group_texts(root, "", "memory.max") + _group_texts(root, "memory", "memory.limit_in_bytes")
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < UNLIMITED), default=None)


def read_pci_vendors(root: Path) -> tuple[str, ...] | None:
    """Vendors of devices on the bus that could compute; None where the bus cannot be read."""
    devices = root / "sys/bus/pci/devices"
    if not devices.is_dir():
        return None
    vendors = []
    for device in sorted(devices.iterdir()):
        kind = _read_text(device / "class")
        if kind is not None and int(kind, 16) >> 16 in (DISPLAY_CLASS, ACCELERATOR_CLASS):
            vendor = _read_text(device / "vendor") or ""
            vendors.append(PCI_VENDORS.get(vendor, vendor))
    return tuple(vendors)


def _quota(text: str) -> float | None:
    """``200000 100000`` is two cores; ``max 100000`` and ``-1 100000`` are no limit."""
    quota, _, period = text.partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _group_texts(root: Path, controller: str, name: str) -> list[str]:
    """The file `name` in this process's group and in each group above it; `controller` is "" for version 2."""
    path = _group_path(root, controller)
    if path is None:
        return []
    mount = root / "sys/fs/cgroup" / controller
    group = mount / path.lstrip("/")
    folders = [group, *group.parents]
    texts = (_read_text(folder / name) for folder in folders if folder == mount or mount in folder.parents)
    return [text for text in texts if text is not None]


def _group_path(root: Path, controller: str) -> str | None:
    """This process's group: ``0::/path`` in version 2, ``4:cpu,cpuacct:/path`` in version 1."""
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return None


def _read_file_system(path: Path) -> tuple[int | None, int | None]:
    """Size and free bytes of the file system at `path`."""
    if not path.is_dir() or not hasattr(os, "statvfs"):
        return None, None
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
