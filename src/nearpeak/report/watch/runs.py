"""Training runs on this machine that leave a recording, found by the processes that hold one open."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from nearpeak.errors import NearpeakError
from nearpeak.recording import PHASES, Recording
from nearpeak.recording.rows import DATABASE
from nearpeak.report.watch.screen import RunLine

__all__ = ["RunFinder", "open_recordings"]

LOOKS = 3
"""A process that holds no recording open after so many looks is not looked at again."""
RECENT_STEPS = 50
NS = 10**9


def open_recordings(
    proc: Path = Path("/proc"), skip: Callable[[int], bool] | None = None
) -> Iterator[tuple[int, Path]]:
    """Process and folder of each recording that a process of this user holds open; nothing outside Linux."""
    for pid in _pids(proc):
        if skip and skip(pid):
            continue
        for target in _open_files(f"{proc}/{pid}/fd"):
            if target.endswith(f"/{DATABASE}"):
                yield pid, Path(target).parent


def _pids(proc: Path) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdigit()] if proc.is_dir() else []


def _open_files(folder: str) -> list[str]:
    """As text: paths would be kept by the interpreter, thousands of them with every look."""
    found = []
    try:
        for name in os.listdir(folder):
            found.append(os.readlink(f"{folder}/{name}"))  # noqa: PERF401  what was read before one vanished counts
    except OSError:  # it ended, or is somebody else's
        pass
    return found


class RunFinder:
    """Looks again and again; what it says of a run comes from its last steps."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._looks: dict[int, int] = {}
        self._folders: dict[Path, int] = {}
        self._own = os.getpid()

    def look(self) -> None:
        """Find runs that began, forget those that ended."""
        present = set(_pids(self._proc))
        self._looks = {pid: count for pid, count in self._looks.items() if pid in present}
        self._folders = {folder: pid for folder, pid in self._folders.items() if pid in present}
        found = dict(open_recordings(self._proc, lambda pid: pid == self._own or self._looks.get(pid, 0) >= LOOKS))
        for pid in present:
            self._looks[pid] = self._looks.get(pid, 0) + 1
        self._folders |= {folder: pid for pid, folder in found.items()}

    def lines(self) -> list[RunLine]:
        """One a run, as it is now; one that cannot be read is left out."""
        return [line for folder, pid in self._folders.items() if (line := _line(folder, pid)) is not None]


def _line(folder: Path, pid: int) -> RunLine | None:
    try:
        recording = Recording(folder)
        last = recording.latest_step()
        steps = [] if last is None else recording.steps(first=max(0, last - RECENT_STEPS + 1))
    except (NearpeakError, OSError):
        return None
    if last is None:
        return None
    process = steps[-1].process
    own = [step for step in steps if step.process == process]
    wall_s = sum(step.wall_s or 0.0 for step in own)
    sums = {phase: sum(getattr(step, f"{phase}_ms") or 0.0 for step in own) for phase in PHASES}
    whole_ms = sum(sums.values())
    shares = (
        sorted(((phase, ms / whole_ms) for phase, ms in sums.items() if ms), key=lambda pair: -pair[1])
        if whole_ms
        else []
    )
    return RunLine(
        name=folder.name,
        pid=pid,
        step=last,
        steps_per_s=len(own) / wall_s if wall_s else None,
        shares=tuple(shares),
    )
