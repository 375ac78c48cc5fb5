"""`nearpeak compare`: what differs between two of a kind. One more kind is one more entry in `KINDS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nearpeak.cli._recordings import DATABASE, find_run, refuse_overwriting, write_text
from nearpeak.errors import DataError

if TYPE_CHECKING:
    from nearpeak.diagnose.compare_traces import TracedRun

__all__ = ["KINDS", "Compared", "Kind", "command"]


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison found."""

    document: dict[str, Any]
    show: Callable[[], None]
    """Prints it on the terminal."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Two of this kind can be compared."""

    name: str
    matches: Callable[[Path], bool]
    compare: Callable[[Path, Path], Compared]


@click.command("compare")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result as JSON to a file.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
def command(first: Path, second: Path, as_json: bool, output: Path | None, force: bool) -> None:
    """Say whether SECOND is faster than FIRST, by how much, and which part of the step made the difference.

    Both are recordings of `nearpeak run`, or traces of profilers (a file, or a folder of ranks), which are compared by
    cause and by kernel. The interval takes into account that steps hang together; where it leaves no difference, that
    is what is said.
    """
    refuse_overwriting("--output", output, force=force)
    compared = _kind_of(first, second).compare(first, second)
    if output is not None or as_json:
        from nearpeak.report.document import to_json

        text = to_json(compared.document)
        if output is not None:
            write_text(output, text + "\n")
        if as_json:
            click.echo(text)
    if not as_json and output is None:
        compared.show()


def _kind_of(first: Path, second: Path) -> Kind:
    """The kind of both."""
    found = []
    for path in (first, second):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder.")
        kind = next((each for each in KINDS if each.matches(path)), None)
        if kind is None:
            known = " or ".join(each.name for each in KINDS)
            raise DataError(f"{path}: nothing that can be compared; it takes two of a kind: {known}.")
        found.append(kind)
    if found[0] is not found[1]:
        raise DataError(f"{first} is a {found[0].name}, {second} a {found[1].name}: they cannot be compared.")
    return found[0]


def _is_recording(path: Path) -> bool:
    return path.name == DATABASE or (path.is_dir() and next(path.rglob(DATABASE), None) is not None)


def _compare_recordings(first: Path, second: Path) -> Compared:
    from nearpeak.diagnose.compare_runs import compare_recordings
    from nearpeak.report.comparison import comparison_document, print_comparison

    compared = compare_recordings(find_run(first), find_run(second))
    named = (str(first), str(second))
    return Compared(comparison_document(compared, *named), lambda: print_comparison(compared, *named))


def _is_xprof(path: Path) -> bool:
    from nearpeak.cli._sources import is_xprof_run

    return is_xprof_run(path)


def _compare_xprof(first: Path, second: Path) -> Compared:
    from nearpeak.cli._sources import figures_of
    from nearpeak.diagnose.compare_traces import xprof_run

    return _compared(first, second, *(xprof_run(str(path), figures_of([path])[0]) for path in (first, second)))


def _is_trace(path: Path) -> bool:
    from nearpeak.cli._sources import is_trace

    return is_trace(path)


def _compare_traces(first: Path, second: Path) -> Compared:
    from nearpeak.cli._sources import timelines_of
    from nearpeak.diagnose.compare_traces import traced_run

    return _compared(first, second, *(traced_run(str(path), timelines_of([path])[0]) for path in (first, second)))


def _compared(first: Path, second: Path, one: TracedRun, other: TracedRun) -> Compared:
    from nearpeak.diagnose.compare_traces import compare_traces
    from nearpeak.report.trace_comparison import print_trace_comparison, trace_comparison_document

    named = (str(first), str(second))
    compared = compare_traces(one, other)
    return Compared(
        trace_comparison_document(compared, *named),
        lambda: print_trace_comparison(compared, *named),
    )


KINDS: tuple[Kind, ...] = (
    Kind("recording of `nearpeak run`", _is_recording, _compare_recordings),
    Kind("run of XProf's own figures", _is_xprof, _compare_xprof),
    Kind("profiler's trace", _is_trace, _compare_traces),
)
