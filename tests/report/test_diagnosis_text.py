"""A diagnosis on a terminal: everything is there, and nothing runs over the edge."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from samples import HOSTILE, breakdown, diagnosis, finding

from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.facts import Facts
from nearpeak.report import terminal
from nearpeak.report.diagnosis_text import FILLS, print_breakdown, print_diagnosis


def printed(what: object, width: int | None = None, monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    if width is not None and monkeypatch is not None:
        monkeypatch.setattr(terminal, "width", lambda file: width)
    out = io.StringIO()
    print_diagnosis(what, heading="my-run", file=out)  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def test_verdict_first_then_findings_with_what_makes_them_useful() -> None:
    text = printed(diagnosis())
    lines = text.splitlines()
    assert lines[1] == "The step waits for its data."
    assert lines[2].startswith("A step takes 212 ms (median of 240): 54 % computing, 43 % waiting for data,")
    flat = " ".join(text.split())
    for needed in (
        "saves 31 % (19 to 37 %)",
        "dataloader_num_workers=4",
        "wait 91.2 ms (steps 10 to 249 of the recording); loader workers 0",
        "Run again: waiting for data should fall below 5 %",
        "waiting for data 43 %",
        "1 finding saves less than 3 % of a step; -v shows it.",
        "Device time: this torch has no CUDA device",
    ):
        assert needed in flat
    assert "Metrics are computed each step" not in text


def test_verbose_shows_what_was_folded() -> None:
    terminal.configure(verbosity=1)
    assert "Metrics are computed each step" in printed(diagnosis())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_fits_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    long = diagnosis(findings=(finding(title="x" * 300, remedy=HOSTILE * 5),), unknown=("y" * 200,))
    for line in printed(long, width, monkeypatch).splitlines():
        assert cell_len(line) <= width, line


def test_a_healthy_run_says_so() -> None:
    text = printed(diagnosis(findings=(), folded=()))
    assert "Nothing found that would save 3 % or more of a step." in text


def test_nothing_seen_is_no_health() -> None:
    text = printed(diagnosis(facts=Facts(source="an empty recording"), findings=(), folded=()))
    assert "does not suffice for a verdict" in text


@given(st.lists(st.integers(0, 10**9), min_size=10, max_size=10).filter(any))
def test_the_bar_is_as_wide_as_the_step(times_ns: list[int]) -> None:
    causes = list(FILLS)[3:]
    parts = Breakdown(
        window_ns=sum(times_ns),
        compute_ns=times_ns[0],
        communication_ns=times_ns[1],
        copy_ns=times_ns[2],
        idle_ns=dict(zip(causes, times_ns[3:], strict=True)),
    )
    out = io.StringIO()
    print_breakdown(parts, 100.0, file=out)
    assert len(out.getvalue().splitlines()[1].strip()) == 60


def test_parts_are_told_apart_without_colour() -> None:
    out = io.StringIO()
    print_breakdown(breakdown(), 212.0, file=out)
    assert {"█", "░", "|"} <= set(out.getvalue())
    assert "\x1b" not in out.getvalue()
    assert len({fill for fill, _ in FILLS.values()}) == len(FILLS)
