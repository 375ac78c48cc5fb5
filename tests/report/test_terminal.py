from __future__ import annotations

import contextlib
import io
import os
import pty
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nearpeak.reason import Reason
from nearpeak.report import terminal


def printed(*arguments: object) -> str:
    out = io.StringIO()
    terminal.print_table(*arguments, file=out)  # pyright: ignore[reportArgumentType]
    return out.getvalue()


cells = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=200)


@given(st.lists(st.tuples(cells, cells, cells).map(list), max_size=4))
def test_tables_fit_eighty_columns_whatever_the_cells(rows: list[list[str]]) -> None:
    assert all(cell_len(line) <= 80 for line in printed("Title", ["a", "b", "c"], rows).splitlines())


def test_tables_keep_markup_and_figures_as_they_are() -> None:
    text = printed("[bold]T[/bold]", ["name", "s per step"], [["[red]x[/red] :tada:", "1.25"], ["y", "10.5"]])
    assert "[bold]T[/bold]" in text
    assert "[red]x[/red] :tada:" in text
    lines = text.splitlines()
    assert lines[-2].index("1.25") + len("1.25") == lines[-1].index("10.5") + len("10.5"), "figures stand right"
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in text


def test_reasons_are_read_as_sentences() -> None:
    out = io.StringIO()
    terminal.print_reasons([Reason("precision=bf16", "the CPU has it")], file=out)
    assert out.getvalue() == "precision=bf16\n    the CPU has it\n"


def test_status_honours_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.status("usual")
    terminal.status("detail", level=1)
    terminal.configure(verbosity=1)
    terminal.status("detail", level=1)
    terminal.configure(verbosity=-1)
    terminal.status("usual")
    captured = capsys.readouterr()
    assert captured.err == "usual\ndetail\n"
    assert captured.out == ""


def test_no_bar_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress(3, "Training") as bar:
        bar.advance(loss=0.5)
    assert capsys.readouterr() == ("", "")


class Terminal:
    """A terminal of 80 columns that stands in for stderr; `text()` is what it showed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, writer = pty.openpty()
        self.stream = os.fdopen(writer, "w", encoding="utf-8")
        monkeypatch.setattr(sys, "stderr", self.stream)
        monkeypatch.setenv("TERM", "xterm-256color")

    def text(self) -> str:
        """Closes the terminal, so that reading ends; Linux says so with an error, others with nothing."""
        self.stream.close()
        shown = b""
        with contextlib.suppress(OSError):
            while part := os.read(self.reader, 1 << 16):
                shown += part
        os.close(self.reader)
        return shown.decode()


def test_a_bar_shows_steps_fields_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Terminal(monkeypatch)
    with terminal.progress(4, "Training") as bar:
        for _ in range(4):
            bar.advance(loss=0.25, samples_per_s=1234.5)
    text = watched.text()
    assert "Training" in text
    assert "4/4" in text
    assert "loss 0.25  samples/s 1,234" in text


def test_a_bar_without_a_total_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Terminal(monkeypatch)
    with terminal.progress(None, "Reading", unit="rows") as bar:
        bar.advance(3)
    assert "3/?" in watched.text()


def test_quiet_silences_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Terminal(monkeypatch)
    terminal.configure(verbosity=-1)
    with terminal.progress(4, "Training") as bar:
        bar.advance()
    assert watched.text() == ""


@pytest.mark.parametrize(("no_color", "flag", "colored"), [("", True, True), ("1", True, False), ("", False, False)])
def test_no_color_holds_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, no_color: str, flag: bool, colored: bool
) -> None:
    watched = Terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal.configure(color=flag)
    with terminal.progress(2, "Training") as bar:
        bar.advance()
    assert ("\x1b[38;" in watched.text()) == colored
