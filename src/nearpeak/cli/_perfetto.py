"""`nearpeak diagnose --perfetto`: the trace with the causes of its time laid over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.errors import DataError

if TYPE_CHECKING:
    from nearpeak.trace.timeline import Timeline

__all__ = ["write_perfetto"]


def write_perfetto(paths: Sequence[Path], timelines: Sequence[Timeline], target: Path) -> None:
    """A single Chrome trace is kept as it is and added to; others, and several ranks together, are written anew."""
    from nearpeak.diagnose.cause_tracks import cause_tracks
    from nearpeak.trace.perfetto import overlay, write_timelines

    if not timelines:
        raise DataError(f"{paths[0]}: holds no trace of single events, which Perfetto could show.")
    if _is_one_chrome_trace(paths):
        overlay(paths[0], target, cause_tracks(timelines, own_clock=True))
    else:
        write_timelines(target, timelines, cause_tracks(timelines, own_clock=False))


def _is_one_chrome_trace(paths: Sequence[Path]) -> bool:
    from nearpeak.trace.kineto import is_kineto
    from nearpeak.trace.pieces import first_bytes

    return len(paths) == 1 and paths[0].is_file() and is_kineto(first_bytes(paths[0], 1 << 10))
