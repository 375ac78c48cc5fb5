"""Whose a process is: its program, user, container and Slurm job, as far as this machine tells."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Owner", "OwnerBook", "container_of", "slurm_job_of"]

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Number of the namespace that a Linux machine starts in: what a driver calls a pid is one of that namespace."""
FORGET_S = 60.0
SHORTEST_CPU_S = 0.5
_CONTAINERS = (
    ("docker", re.compile(r"(?:docker[-/])([0-9a-f]{64})")),
    ("containerd", re.compile(r"cri-containerd[-:]([0-9a-f]{64})")),
    ("crio", re.compile(r"crio-(?:conmon-)?([0-9a-f]{64})")),
    ("podman", re.compile(r"libpod-([0-9a-f]{64})")),
    ("lxc", re.compile(r"/lxc(?:\.payload)?[./]([^/\n]+)")),
    ("kubernetes", re.compile(r"kubepods[^\n]*pod([0-9a-f][0-9a-f_-]{30,})")),
)
_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)


def container_of(cgroup: str) -> str | None:
    """From the text of /proc/PID/cgroup: ``docker:3f2a9c01b7de``; the innermost where they nest."""
    found = [
        (match.start(1), f"{runtime}:{match[1][:12]}")
        for runtime, pattern in _CONTAINERS
        for match in pattern.finditer(cgroup)
    ]
    return max(found)[1] if found else None


def slurm_job_of(cgroup: str, environ: bytes | None) -> str | None:
    """From its control group, else from its environment, where this user may read it."""
    match = _SLURM_JOB.search(cgroup) if "slurm" in cgroup else None
    if match:
        return match[1]
    for entry in (environ or b"").split(b"\0"):
        if entry.startswith(b"SLURM_JOB_ID="):
            return entry.partition(b"=")[2].decode(errors="replace") or None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What does not change about a process, and what was last seen of its CPU time and memory."""

    name: str | None = None
    command: str | None = None
    user: str | None = None
    started_ns: int | None = None
    container: str | None = None
    slurm_job: str | None = None
    cpu_percent: float | None = None
    host_memory_bytes: int | None = None


class OwnerBook:
    """Looks processes up, each once; CPU time and memory each time."""

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._entries: dict[int, _Entry] = {}
        self._foreign = not _sees_every_process(proc)

    def look_up(self, pid: int) -> Owner:
        """What is known of this process now; empty where it is not of this machine or container."""
        entry = self._entries.get(pid)
        if entry is None or not entry.alive():
            found = _open(pid, self._proc, self._foreign)
            if found is None:
                self._entries.pop(pid, None)
                return Owner()
            entry = self._entries[pid] = _Entry(*found)
        entry.seen_s = self._clock()
        self._forget(entry.seen_s)
        return entry.now(entry.seen_s)

    def _forget(self, now_s: float) -> None:
        if len(self._entries) > 64:
            self._entries = {pid: each for pid, each in self._entries.items() if now_s - each.seen_s < FORGET_S}


class _Entry:
    """One process that was found."""

    def __init__(self, process: Any, fixed: dict[str, Any]) -> None:
        self._process, self._fixed = process, fixed
        self._cpu_s: float | None = None
        self._cpu_at_s = self.seen_s = 0.0
        self._last: Owner | None = None

    def alive(self) -> bool:
        return bool(self._process.is_running())

    def now(self, now_s: float) -> Owner:
        """CPU share over the time since the last look, which must be long enough to mean something."""
        import psutil

        if self._last is not None and now_s - self._cpu_at_s < SHORTEST_CPU_S:
            return self._last
        try:
            with self._process.oneshot():
                times, memory = self._process.cpu_times(), self._process.memory_info().rss
        except psutil.Error:
            return Owner(**self._fixed)
        used_s = times.user + times.system
        share = None if self._cpu_s is None else round(100 * (used_s - self._cpu_s) / (now_s - self._cpu_at_s), 1)
        self._cpu_s, self._cpu_at_s = used_s, now_s
        self._last = Owner(**self._fixed, cpu_percent=share, host_memory_bytes=memory)
        return self._last


def _open(pid: int, proc: Path, foreign: bool) -> tuple[Any, dict[str, Any]] | None:
    import psutil

    if foreign and not _uses_a_device(proc / str(pid)):
        return None  # another process may carry this number in here
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            fixed = {"name": _quietly(process.name), "user": _quietly(process.username)}
            command = _quietly(process.cmdline)
            fixed |= {"command": " ".join(command) if command else None}
            started = _quietly(process.create_time)
    except (psutil.Error, ValueError):
        return None
    cgroup = _read(proc / str(pid) / "cgroup")
    text = (cgroup or b"").decode(errors="replace")
    fixed |= {
        "started_ns": None if started is None else int(started * 1e9),
        "container": container_of(text),
        "slurm_job": slurm_job_of(text, _read(proc / str(pid) / "environ")),
    }
    return process, fixed


def _quietly(question: Callable[[], Any]) -> Any:
    """None where the system does not let us know."""
    import psutil

    try:
        return question()
    except (psutil.AccessDenied, KeyError):
        return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _sees_every_process(proc: Path) -> bool:
    """Inside a container's own namespace of processes, numbers mean other processes than the driver's do."""
    try:
        return os.stat(proc / "self/ns/pid").st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return True  # not Linux


def _uses_a_device(process: Path) -> bool:
    """Holds a device of the driver open."""
    try:
        links = [os.readlink(entry) for entry in (process / "fd").iterdir()]
    except OSError:
        return False
    return any(link.startswith(("/dev/nvidia", "/dev/dxg", "/dev/kfd", "/dev/dri")) for link in links)
