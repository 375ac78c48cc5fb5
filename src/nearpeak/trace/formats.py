"""Which format a trace is in, and the timelines that it holds. A new format is one more entry in `FORMATS`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nearpeak.errors import DataError
from nearpeak.trace.ranks import in_order_of_rank, with_rank_of_name
from nearpeak.trace.tensorboard_runs import without_copies
from nearpeak.trace.timeline import Timeline

__all__ = ["FORMATS", "TraceFormat", "format_of", "read_traces", "traces_below"]

SNIFFED_BYTES = (1 << 12, 1 << 16)
"""Few nearly always tell; some writers put much before the events."""
PARALLEL_FROM_BYTES = 16 << 20
"""Another process costs about as much as reading this many bytes (packed) by itself."""
SIGNS_OF_KINETO = (b'"traceEvents"', b'"ph"', b'"deviceProperties"', b'"schemaVersion"')


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format: its name, whether a file is in it, and how to read it."""

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], list[Timeline]]


def _is_nsys(path: Path) -> bool:
    from nearpeak.trace.nsys import is_nsys

    return is_nsys(path)


def _read_nsys(path: Path) -> list[Timeline]:
    from nearpeak.trace.nsys import read_nsys

    return read_nsys(path)


def _is_xplane(path: Path) -> bool:
    from nearpeak.trace.xplane import is_xplane

    return is_xplane(path)


def _read_xplane(path: Path) -> list[Timeline]:
    from nearpeak.trace.xplane import read_xplane

    return [read_xplane(path)]


def _is_kineto(path: Path) -> bool:
    """By its begin, not by its name: an object or list that speaks of events."""
    from nearpeak.trace.kineto import is_kineto
    from nearpeak.trace.pieces import first_bytes

    named = path.name.endswith((".trace.json", ".trace.json.gz"))
    for count in SNIFFED_BYTES:
        first = first_bytes(path, count)
        if not is_kineto(first):
            return False
        if named or any(sign in first for sign in SIGNS_OF_KINETO):
            return True
    return False


def _read_kineto(path: Path) -> list[Timeline]:
    from nearpeak.trace.chrome_planes import with_planes
    from nearpeak.trace.kineto import read_kineto
    from nearpeak.trace.processes import split_processes

    return split_processes(with_planes(read_kineto(path)))


FORMATS = (
    TraceFormat("Nsight Systems export", _is_nsys, _read_nsys),
    TraceFormat("XPlane", _is_xplane, _read_xplane),
    TraceFormat("PyTorch profiler trace", _is_kineto, _read_kineto),
)


def format_of(path: Path) -> TraceFormat | None:
    """None where the file is no trace that we know."""
    return next((each for each in FORMATS if each.matches(path)), None)


def traces_below(folder: Path) -> list[Path]:
    """Every trace in a folder and below, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return without_copies([path for path in files if path.stat().st_size and format_of(path) is not None])


def read_traces(paths: Sequence[Path]) -> list[Timeline]:
    """All timelines of the files, by rank; large files are read side by side, one process each."""
    if not paths:
        raise DataError("no trace was given.")
    workers = min(len(paths), os.cpu_count() or 1)
    if workers < 2 or sum(path.stat().st_size for path in paths) < PARALLEL_FROM_BYTES:
        found = [_read(path) for path in paths]
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(_read, paths))
    return in_order_of_rank([timeline for each in found for timeline in each])


def _read(path: Path) -> list[Timeline]:
    found = format_of(path)
    if found is None:
        known = ", ".join(each.name for each in FORMATS)
        raise DataError(f"{path}: no trace in a format that nearpeak reads ({known}).")
    timelines = found.read(path)
    return [with_rank_of_name(timelines[0], path)] if len(timelines) == 1 else timelines
