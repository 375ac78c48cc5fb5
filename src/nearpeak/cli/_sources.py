"""What a path may be that `nearpeak diagnose` is given, and how each becomes a diagnosis. One more source is one more
entry in `SOURCES`; the first that matches takes the paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.errors import DataError

if TYPE_CHECKING:
    from nearpeak.diagnose.diagnosis import Diagnosis
    from nearpeak.hardware.logs.log import DeviceLog
    from nearpeak.recording import Recording
    from nearpeak.trace.timeline import Timeline
    from nearpeak.trace.xprof import XprofFigures

__all__ = ["SOURCES", "Diagnosed", "Source", "diagnose_paths", "figures_of", "is_trace", "is_xprof_run", "timelines_of"]

DATABASE = "recording.sqlite"
NSIGHT_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""Nsight Systems' own files, which only its tools read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """A diagnosis and what it was made from, for the page."""

    diagnosis: Diagnosis
    timelines: tuple[Timeline, ...] = ()
    recording: Recording | None = None
    log: DeviceLog | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of thing that can be diagnosed."""

    name: str
    matches: Callable[[Path], bool]
    diagnose: Callable[[Sequence[Path]], Diagnosed]


def diagnose_paths(paths: Sequence[Path]) -> Diagnosed:
    """Of one source: paths of different kinds do not mix."""
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise DataError(f"{missing}: no such file or folder.")
    sources = {path: _source_of(path) for path in paths}
    first = sources[paths[0]]
    odd = next((path for path, source in sources.items() if source is not first), None)
    if odd is not None:
        raise DataError(f"{paths[0]} is a {first.name}, {odd} a {sources[odd].name}: give them one by one.")
    return first.diagnose(paths)


def _source_of(path: Path) -> Source:
    if path.suffix in NSIGHT_REPORTS:
        raise DataError(f"{path}: only Nsight Systems reads its reports; export it: nsys export --type sqlite {path}")
    source = next((each for each in SOURCES if each.matches(path)), None)
    if source is None:
        known = ", ".join(each.name for each in SOURCES)
        raise DataError(f"{path}: nothing in it that nearpeak can diagnose ({known}).")
    return source


def _is_recording(path: Path) -> bool:
    return path.name == DATABASE or (path.is_dir() and next(path.rglob(DATABASE), None) is not None)


def _of_recording(paths: Sequence[Path]) -> Diagnosed:
    from nearpeak.cli._recordings import find_run
    from nearpeak.diagnose.recorded import diagnose_recording

    if len(paths) > 1:
        raise DataError(f"{paths[0]}, {paths[1]}: one recording at a time.")
    recording = find_run(paths[0])
    return Diagnosed(diagnosis=diagnose_recording(recording), recording=recording)


def is_trace(path: Path) -> bool:
    """Whether a file is a profiler's trace, or a folder holds one."""
    from nearpeak.trace.formats import format_of, traces_below

    return bool(traces_below(path)) if path.is_dir() else format_of(path) is not None


def timelines_of(paths: Sequence[Path]) -> tuple[list[Timeline], list[str]]:
    """Those of all traces, by rank, and what was left out."""
    from nearpeak.trace.formats import read_traces, traces_below
    from nearpeak.trace.tensorboard_runs import latest_run

    files = [file for path in paths for file in (traces_below(path) if path.is_dir() else [path])]
    files, left_out = latest_run(files)
    return read_traces(files), left_out


def _of_traces(paths: Sequence[Path]) -> Diagnosed:
    from nearpeak.diagnose.diagnosis import conclude
    from nearpeak.diagnose.reduce_traces import reduce_traces

    timelines, left_out = timelines_of(paths)
    facts, unknown = reduce_traces(timelines)
    return Diagnosed(diagnosis=conclude(facts, [*left_out, *unknown]), timelines=tuple(timelines))


def is_xprof_run(path: Path) -> bool:
    """Whether it holds XProf's own figures, and no trace that they were made from."""
    from nearpeak.trace.xprof import is_xprof, xprof_below

    if path.is_file():
        return is_xprof(path)
    return bool(xprof_below(path)) and next(path.rglob("*.xplane.pb*"), None) is None


def figures_of(paths: Sequence[Path]) -> tuple[list[XprofFigures], list[str]]:
    """XProf's figures of each host, and what was left out."""
    from nearpeak.trace.tensorboard_runs import latest_run
    from nearpeak.trace.xprof import read_xprof, xprof_below

    files = [file for path in paths for file in (xprof_below(path) if path.is_dir() else [path])]
    files, left_out = latest_run(files)
    return read_xprof(files), left_out


def _of_xprof(paths: Sequence[Path]) -> Diagnosed:
    from nearpeak.diagnose.diagnosis import conclude
    from nearpeak.diagnose.reduce_xprof import reduce_xprof

    hosts, left_out = figures_of(paths)
    facts, unknown = reduce_xprof(hosts)
    return Diagnosed(diagnosis=conclude(facts, [*left_out, *unknown]))


def _of_log(paths: Sequence[Path]) -> Diagnosed:
    from nearpeak.diagnose.device_log import diagnose_log
    from nearpeak.hardware.logs.log import read_log

    if len(paths) > 1:
        raise DataError(f"{paths[0]}, {paths[1]}: one log at a time.")
    try:
        log = read_log(paths[0])
    except DataError as error:
        others = ", ".join(each.name for each in SOURCES[:-1])
        raise DataError(f"{paths[0]}: is no {others}; and as a log: {error}") from None
    return Diagnosed(diagnosis=diagnose_log(log), log=log)


SOURCES = (
    Source("recording of `nearpeak run`", _is_recording, _of_recording),
    Source("run of XProf's own figures", is_xprof_run, _of_xprof),
    Source("profiler's trace", is_trace, _of_traces),
    Source("device log", Path.is_file, _of_log),
)
"""In the order in which they are tried: whatever file is nothing else may be a log, whose reader says what it takes."""
