"""Where in the code a thread is, now and then: places counted by phase. Standard library only."""

from __future__ import annotations

import json
import os
import sysconfig
from types import CodeType, FrameType
from typing import Any

from nearpeak.recording.schema import StackRecord

__all__ = ["Places", "read_stack"]

Spot = tuple[CodeType, int]

DEEPEST = 200
MOST_FRAMES = 12
INNERMOST = 6
"""Frames that are kept whosever they are; further out the user's own come first."""
MOST_PLACES = 2_000
COARSE_FRAMES = 3
"""Frames that tell places apart once there are too many."""
_OURS = os.path.dirname(os.path.abspath(__file__))
_LIBRARY_KINDS = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple({os.path.abspath(path) for kind in _LIBRARY_KINDS if (path := sysconfig.get_path(kind))})
_DETOURS = ("_call_impl", "_wrapped_call_impl")
"""Between a module and its forward: they take two of three frames and say nothing."""


def read_stack(frame: FrameType | None) -> tuple[Spot, ...]:
    """Code and line of each frame, innermost first. Our own and the detours of module calls are left out."""
    spots: list[Spot] = []
    depth = 0
    while frame is not None and depth < DEEPEST:
        code = frame.f_code
        if code.co_name not in _DETOURS and not code.co_filename.startswith(_OURS):
            spots.append((code, frame.f_lineno or code.co_firstlineno))
        frame, depth = frame.f_back, depth + 1
    return tuple(spots)


class Places:
    """Counts by phase and place. One thread adds, the same one takes."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, tuple[Spot, ...]], list[float]] = {}
        self._texts: dict[Spot, str] = {}
        self._known: set[tuple[str, tuple[Spot, ...]]] = set()

    def add(self, phase: str, spots: tuple[Spot, ...], samples: int = 1, total_ms: float | None = None) -> None:
        """Count one sample, or several whose time is known."""
        key = (phase, spots)
        if key not in self._known:
            if len(self._known) >= MOST_PLACES:
                key = (phase, spots[:COARSE_FRAMES])
            else:
                self._known.add(key)
        counted = self._counts.setdefault(key, [0, 0.0, 0])
        counted[0] += samples
        if total_ms is not None:
            counted[1] += total_ms
            counted[2] = 1

    def take(self, process: int) -> list[StackRecord]:
        """What was counted since the last time."""
        counts, self._counts = self._counts, {}
        merged: dict[tuple[str, str], list[float]] = {}
        for (phase, spots), counted in counts.items():
            whole = merged.setdefault((phase, self._frames(spots)), [0, 0.0, 0])
            merged[phase, self._frames(spots)] = [a + b for a, b in zip(whole, counted, strict=True)]
        return [
            StackRecord(
                process=process,
                phase=phase,
                frames=frames,
                samples=int(samples),
                total_ms=total_ms if timed else None,
            )
            for (phase, frames), (samples, total_ms, timed) in merged.items()
        ]

    def _frames(self, spots: tuple[Spot, ...]) -> str:
        return json.dumps([self._text(spot) for spot in choose_frames(spots)])

    def _text(self, spot: Spot) -> str:
        if spot not in self._texts:
            code, line = spot
            self._texts[spot] = f"{code.co_filename}:{line} {code.co_qualname}"
        return self._texts[spot]


def choose_frames(spots: tuple[Spot, ...]) -> tuple[Spot, ...]:
    """The innermost, and of the others the user's own first, in their order."""
    if len(spots) <= MOST_FRAMES:
        return spots
    rest = range(INNERMOST, len(spots))
    by_worth = sorted(rest, key=lambda i: (_is_library(spots[i][0]), i))
    kept = sorted(by_worth[: MOST_FRAMES - INNERMOST])
    return (*spots[:INNERMOST], *(spots[i] for i in kept))


def _is_library(code: Any) -> bool:
    return code.co_filename.startswith(_LIBRARIES) or code.co_filename.startswith("<")
