"""Run under the stub driver: the live view's loop without its terminal, as fast as it goes, with a clock of its own.

Prints what Python holds after `EARLY` and after `LATE` ticks, and how many paths a tick made in between, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import tempfile
import time
import tracemalloc
from typing import Any

EARLY, LATE = 500, 2500
TICK_S = 0.25
"""Four a second: the last minute, which is kept, is full long before `EARLY`; `LATE` comes after more than ten."""

DRAWN_EVERY = 4


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.ticks = 0
        self._start_ns = time.time_ns()

    def monotonic(self) -> float:
        return 1000 + self.ticks * TICK_S

    def time_ns(self) -> int:
        return self._start_ns + int(self.ticks * TICK_S * 1e9)


clock = Clock()
time.monotonic, time.time_ns = clock.monotonic, clock.time_ns  # before any module takes them as a default

from nearpeak.report.watch.runs import RunFinder  # noqa: E402
from nearpeak.report.watch.screen import ViewState, screen_lines  # noqa: E402
from nearpeak.report.watch.watcher import LiveWatcher  # noqa: E402

paths_made = 0
join = pathlib.PurePath.__truediv__


def counted_join(path: pathlib.PurePath, part: Any) -> Any:
    global paths_made
    paths_made += 1
    return join(path, part)


def held_bytes() -> int:
    """Garbage and the interpreter's own lists of spare objects apart."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def own_processes(folder: str) -> pathlib.Path:
    """A /proc of this process alone: what else trains on the machine is looked at too, and makes paths."""
    proc = pathlib.Path(folder)
    (proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    return proc


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure(LiveWatcher(runs=RunFinder(own_processes(folder))), ViewState())


def measure(watcher: LiveWatcher, state: ViewState) -> None:
    watcher.open()
    held: list[int] = []
    shown = 0
    tracemalloc.start()
    for clock.ticks in range(1, LATE + 1):
        watcher.tick()
        state.findings, state.runs = watcher.findings, watcher.runs
        if clock.ticks % DRAWN_EVERY == 0:
            shown = len(screen_lines(watcher.history, state, 120, 40))
        if clock.ticks in (EARLY, LATE):
            held.append(held_bytes())
            pathlib.PurePath.__truediv__ = counted_join  # type: ignore[method-assign]
    tracemalloc.stop()
    watcher.close()
    assert watcher.history.latest is not None
    states = [reading.state for reading in watcher.history.latest.readings]
    found = {"early_bytes": held[0], "late_bytes": held[1], "paths_a_tick": paths_made / (LATE - EARLY)}
    print(json.dumps(found | {"lines": shown, "states": states, "kept": len(watcher.history.readings)}))  # noqa: T201


main()
