"""Two traces side by side: on the terminal and as JSON."""

from __future__ import annotations

import sys
from typing import IO, Any

from rich.text import Text

from nearpeak.diagnose.compare_traces import TraceComparison
from nearpeak.report import terminal
from nearpeak.report.comparison import comparison_document
from nearpeak.report.figures import duration_text, number_text, share_text
from nearpeak.report.wording import CAUSES

__all__ = ["print_trace_comparison", "trace_comparison_document"]

MOST_KERNELS_SHOWN = 12
MOST_KERNELS_WRITTEN = 500
LONGEST_NAME = 34
LEAST_SHARE = 0.0005
"""Of a step: smaller changes are not shown."""
LEAST_PART = 0.1
"""Of the whole change, for a cause to be named with it."""


def trace_comparison_document(comparison: TraceComparison, first: str, second: str) -> dict[str, Any]:
    """As plain values; times are per step, mean over steps, ranks and devices."""
    document = comparison_document(comparison.whole, first, second)
    document.pop("phases")
    document["causes"] = [
        {
            "cause": each.cause,
            "first_ms": each.first_ms,
            "second_ms": each.second_ms,
            "change_ms": each.change_ms,
        }
        for each in comparison.causes
    ]
    document["kernels"] = [
        {
            "name": each.name,
            "first_ms": each.first_ms,
            "second_ms": each.second_ms,
            "change_ms": each.change_ms,
            "first_count": each.first_count,
            "second_count": each.second_count,
        }
        for each in comparison.kernels[:MOST_KERNELS_WRITTEN]
    ]
    document["unknown"] = list(comparison.unknown)
    return document


def print_trace_comparison(
    comparison: TraceComparison, first: str, second: str, *, file: IO[str] | None = None
) -> None:
    """Verdict, causes, kernels."""
    out = file or sys.stdout
    for position, line in enumerate(_verdict(comparison, first, second)):
        terminal.write(Text(line, style="bold" if position == 0 else ""), out)
    least_ms = LEAST_SHARE * max(comparison.whole.first_ms, comparison.whole.second_ms)
    out.write("\n")
    columns = ["", "first", "second", "change"]
    terminal.print_table("Mean per step, by cause", columns, _cause_rows(comparison, least_ms), file=out)
    rows = _kernel_rows(comparison, least_ms)
    if rows:
        out.write("\n")
        columns = ["kernel", "first", "second", "change", "number"]
        terminal.print_table("Per step and device, by kernel", columns, rows, file=out)
    for line in comparison.unknown:
        terminal.write(Text(line, style="dim"), out)


def _verdict(comparison: TraceComparison, first: str, second: str) -> list[str]:
    whole = comparison.whole
    change = whole.second_ms / whole.first_ms - 1 if whole.first_ms else 0.0
    than = f"{share_text(abs(change))} {'longer' if change > 0 else 'shorter'} than"
    lines = [f"The mean step of {second} is {than} that of {first}."]
    lines.append(f"{duration_text(whole.first_ms)} → {duration_text(whole.second_ms)}, {_basis(comparison)}")
    least_ms = LEAST_PART * abs(whole.second_ms - whole.first_ms)
    largest = [each for each in comparison.causes if each.change_ms * change > 0 and abs(each.change_ms) > least_ms][:2]
    if largest:
        told = ", ".join(f"{CAUSES[each.cause]} ({_signed(each.change_ms)})" for each in largest)
        lines.append(f"Most of the change: {told}.")
    return lines


def _basis(comparison: TraceComparison) -> str:
    whole = comparison.whole
    counted = f"from {whole.steps[0]:,} and {whole.steps[1]:,} steps"
    if whole.ratio is None:
        return f"{counted}: too few to say that it would come again."
    if whole.verdict == "no difference can be told":
        return f"{counted}: no more than steps differ among themselves (× {_interval(whole.ratio)})."
    return f"{counted} (95 % interval × {_interval(whole.ratio)})."


def _interval(ratio: Any) -> str:
    return f"{ratio.low:.3f} to {ratio.high:.3f}"


def _cause_rows(comparison: TraceComparison, least_ms: float) -> list[list[str]]:
    rows = [
        [CAUSES[each.cause], duration_text(each.first_ms), duration_text(each.second_ms), _signed(each.change_ms)]
        for each in comparison.causes
        if max(each.first_ms, each.second_ms) >= least_ms
    ]
    whole = comparison.whole
    sums = [duration_text(whole.first_ms), duration_text(whole.second_ms)]
    return [*rows, ["all", *sums, _signed(whole.second_ms - whole.first_ms)]]


def _kernel_rows(comparison: TraceComparison, least_ms: float) -> list[list[str]]:
    changed = [each for each in comparison.kernels if abs(each.change_ms) >= least_ms]
    return [
        [
            _short(each.name),
            duration_text(each.first_ms),
            duration_text(each.second_ms),
            _signed(each.change_ms),
            f"{number_text(each.first_count)} → {number_text(each.second_count)}",
        ]
        for each in changed[:MOST_KERNELS_SHOWN]
    ]


def _short(name: str) -> str:
    """The begin says the library, the end of a template the shape: the begin is kept."""
    name = name.removeprefix("void ")
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _signed(milliseconds: float) -> str:
    return ("+" if milliseconds > 0 else "") + duration_text(milliseconds)
