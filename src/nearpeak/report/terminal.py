"""What nearpeak prints on a terminal: tables and reasons on stdout, status and progress on stderr.

Eighty columns where no terminal says otherwise; colour only on a terminal, never under NO_COLOR or `--no-color`.
rich is imported by the first table, not by this module: `nearpeak --help` imports this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress

    from nearpeak.reason import Reason

__all__ = [
    "Progress",
    "configure",
    "in_color",
    "print_note",
    "print_reasons",
    "print_table",
    "progress",
    "status",
    "verbosity",
    "width",
    "write",
]

NARROWEST = 40
WIDEST = 120
DEFAULT_WIDTH = 80


class _Settings:
    """What -q, -v and --no-color have set, for the whole process."""

    verbosity = 0
    color = True


def configure(*, verbosity: int | None = None, color: bool | None = None) -> None:
    """Set how much is said (-1 quiet, 0 normal, 1 and up more) and whether in colour; None leaves a setting alone."""
    if verbosity is not None:
        _Settings.verbosity = verbosity
    if color is not None:
        _Settings.color = color


def verbosity() -> int:
    """How much to say: below 0 only results and errors, 0 the usual, above 0 details too."""
    return _Settings.verbosity


def status(message: str, *, level: int = 0) -> None:
    """Say on stderr what is going on; `-q` silences it, and `level=1` is said only under `-v`."""
    if _Settings.verbosity >= level:
        print(message, file=sys.stderr, flush=True)  # noqa: T201  the one place that writes status


def print_table(title: str, columns: list[str], rows: list[list[str]], *, file: IO[str] | None = None) -> None:
    """Print a table; columns of numbers stand right, long cells wrap inside the width."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for position, column in enumerate(columns):
        numeric = _is_numeric([row[position] for row in rows])
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    write(table, file or sys.stdout)


def print_reasons(reasons: Iterable[Reason], *, file: IO[str] | None = None) -> None:
    """Print why each automatic choice was made, one paragraph a choice."""
    for reason in reasons:
        print_note(reason.choice, reason.because, file=file)


def print_note(heading: str, *paragraphs: str | None, file: IO[str] | None = None) -> None:
    """Print a heading and indented paragraphs under it; None leaves a paragraph out."""
    from rich.padding import Padding
    from rich.text import Text

    out = file or sys.stdout
    write(Text(heading, style="bold"), out)
    for paragraph in filter(None, paragraphs):
        write(Padding(Text(paragraph), (0, 0, 0, 4)), out)


@contextmanager
def progress(total: int | None, description: str, *, unit: str = "steps") -> Iterator[Progress]:
    """A progress bar on stderr; silent where stderr is no terminal, and under `-q`.

    >>> with progress(100, "Training") as bar:
    ...     bar.advance(loss=0.31, samples_per_s=812.0)
    """
    if not _shows_progress():
        yield Progress(None)
        return
    with _rich_progress(unit) as display:
        display.add_task(description, total=total, fields="")
        yield Progress(display)


class Progress:
    """A running bar, or nothing at all where nobody watches."""

    def __init__(self, display: RichProgress | None) -> None:
        self._display = display

    def advance(self, steps: int = 1, **fields: object) -> None:
        """Move on by `steps`; fields such as ``loss=0.31`` stand behind the bar."""
        if self._display is None:
            return
        self._display.advance(self._display.task_ids[0], steps)
        if fields:
            self._display.update(self._display.task_ids[0], fields=_field_text(fields))


def _shows_progress() -> bool:
    return _Settings.verbosity >= 0 and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _rich_progress(unit: str) -> RichProgress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn(unit, markup=False),
        TextColumn("{task.fields[fields]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=_console(sys.stderr),
        refresh_per_second=4,
    )


def _field_text(fields: dict[str, Any]) -> str:
    """`loss 0.31  samples/s 812`."""
    return "  ".join(
        f"{name.replace('_per_', '/').replace('_', ' ')} {_short(value)}" for name, value in fields.items()
    )


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _is_numeric(cells: list[str]) -> bool:
    """Whether a column holds figures: each filled cell starts with a digit or a sign before one."""
    filled = [cell for cell in cells if cell not in ("", "–", "-")]
    return bool(filled) and all(cell.lstrip("+-−±<>~≤≥ ")[:1].isdigit() for cell in filled)


def write(what: RenderableType, file: IO[str]) -> None:
    """Write something of rich's, as text: rich fills lines up with blanks, which have no place in a file or a diff."""
    console = _console(file)
    with console.capture() as capture:
        console.print(what)
    file.write("\n".join(line.rstrip() for line in capture.get().split("\n")))


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    return Console(file=file, width=width(file), no_color=not in_color(), highlight=False, markup=False, emoji=False)


def in_color() -> bool:
    """Whether colours may be used at all; a file or pipe gets none in any case."""
    return _Settings.color and not os.environ.get("NO_COLOR")


def width(file: IO[str]) -> int:
    """The terminal's width within reason; eighty columns in files and pipes, so that they read the same everywhere."""
    if not file.isatty():
        return DEFAULT_WIDTH
    try:
        columns = os.get_terminal_size(file.fileno()).columns
    except (OSError, ValueError):
        return DEFAULT_WIDTH
    return min(max(columns, NARROWEST), WIDEST) if columns else DEFAULT_WIDTH
