"""`Live`: where the steps' time goes, while a command runs: one line on stderr, from its recording."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from nearpeak.errors import NearpeakError
from nearpeak.recording import PHASES, Recording, StepRecord
from nearpeak.report import terminal

__all__ = ["Live", "live_line"]

EVERY_S = 1.0
EVERY_LINES_S = 10.0
"""Where nothing can be overwritten."""
LATEST = 50
SMALLEST_PERCENT = 1.0


def live_line(steps: list[StepRecord], width: int = 80) -> str | None:
    """``step 1,200  48.1 ms  backward 51 %  forward 30 %  input 12 %``; None where there is nothing yet."""
    latest = [step for step in steps if step.wall_s][-LATEST:]
    if not latest:
        return None
    wall_ms = sum(1e3 * (step.wall_s or 0.0) for step in latest)
    spent = {name: sum(getattr(step, f"{name}_ms") or 0.0 for step in latest) for name in PHASES}
    shares = sorted(((100 * ms / wall_ms, name) for name, ms in spent.items()), reverse=True)
    parts = [f"{name} {share:.0f} %" for share, name in shares if share >= SMALLEST_PERCENT]
    line = f"step {max(step.step for step in latest) + 1:,}  {wall_ms / len(latest):.1f} ms"
    for part in parts:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line


class Live:
    """Follows a recording from a thread of its own, from entering to leaving."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearpeak-live", daemon=True)
        self._overwrites = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last = ""
        while not self._stop.wait(EVERY_S if self._overwrites else EVERY_LINES_S):
            last = self._show() or last
        if not self._overwrites:
            self._show()
        elif last:
            sys.stderr.write("\n")

    def _show(self) -> str | None:
        try:
            recording = Recording(self._folder)
            newest = recording.latest_step()
            first = max(0, (newest or 0) - LATEST)
            line = live_line(recording.steps(first), terminal.width(sys.stderr) - 1)
        except NearpeakError:  # it is being made, or cannot be read at this moment
            return None
        if line is not None:
            sys.stderr.write(f"\r\x1b[K{line}" if self._overwrites else f"nearpeak: {line}\n")
            sys.stderr.flush()
        return line
