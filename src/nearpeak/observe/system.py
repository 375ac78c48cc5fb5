"""What the system says of a process: memory, disk reads, CPU time. Cheap, and None where it cannot be read."""

from __future__ import annotations

import os

__all__ = ["CpuAndReads", "ResidentMemory", "read_cpu_ms", "read_disk_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10.0


class ResidentMemory:
    """Resident memory of this process, read through a file that stays open."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._pid: int | None = None

    def read(self) -> int | None:
        """Bytes."""
        if self._pid != os.getpid():  # also after a fork: the open file would tell of the parent
            self._pid = os.getpid()
            try:
                self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._file = None
        if self._file is None:
            return None
        return int(os.pread(self._file, 128, 0).split()[1]) * _PAGE


def read_cpu_ms(pid: int) -> float | None:
    """User and system time of a process so far."""
    text = _read(f"/proc/{pid}/stat")
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold anything
    return (int(fields[11]) + int(fields[12])) * _TICK_MS


def read_disk_bytes(pid: int | str) -> int | None:
    """Read from the disk, not from the page cache, by a process so far."""
    text = _read(f"/proc/{pid}/io")
    if text is None:
        return None
    entries = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return int(entries["read_bytes"]) if "read_bytes" in entries else None


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # it has ended, or is not ours to look at
        return None


class CpuAndReads:
    """Growth between two looks: CPU time of the workers, disk reads of the process and its workers."""

    def __init__(self) -> None:
        self._cpu_ms: dict[int, float] = {}
        self._read_bytes: dict[int, int] = {}

    def look(self, pid: int, workers: list[int]) -> tuple[float | None, int | None]:
        """Since the last look; a worker that is new counts from its start."""
        cpu = {each: value for each in workers if (value := read_cpu_ms(each)) is not None}
        reads = {each: value for each in (pid, *workers) if (value := read_disk_bytes(each)) is not None}
        grown_ms = sum(value - self._cpu_ms.get(each, 0.0) for each, value in cpu.items()) if cpu else None
        first = pid not in self._read_bytes
        grown_bytes = sum(value - self._read_bytes.get(each, 0) for each, value in reads.items())
        self._cpu_ms, self._read_bytes = cpu, reads
        return grown_ms, None if first or pid not in reads else grown_bytes
