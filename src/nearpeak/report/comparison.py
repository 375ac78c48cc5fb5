"""Two runs side by side: on the terminal and as JSON."""

from __future__ import annotations

import sys
from typing import IO, Any

from rich.text import Text

from nearpeak.diagnose.compare_runs import CONFIDENCE, Comparison
from nearpeak.forecast import Interval
from nearpeak.report import terminal
from nearpeak.report.document import SCHEMA, interval_document
from nearpeak.report.figures import duration_text, number_text, share_text
from nearpeak.report.wording import PHASE_NAMES

__all__ = ["comparison_document", "print_comparison", "verdict_text"]

TABLE_WIDTH = 80
LIMITS = (
    "The interval holds for what these runs showed. What differs between them as a whole (another machine, other "
    "programs beside them) can only be told from more runs."
)


def comparison_document(comparison: Comparison, first: str, second: str) -> dict[str, Any]:
    """As plain values; the ratio is that of the second run to the first."""
    return {
        "schema": SCHEMA,
        "first": first,
        "second": second,
        "verdict": comparison.verdict,
        "unit": comparison.unit,
        "first_ms": comparison.first_ms,
        "second_ms": comparison.second_ms,
        "ratio": interval_document(comparison.ratio),
        "confidence": CONFIDENCE,
        "steps": list(comparison.steps),
        "independent_steps": list(comparison.independent),
        "phases": [
            {
                "phase": each.phase,
                "first_ms": each.first_ms,
                "second_ms": each.second_ms,
                "change_ms": interval_document(each.change_ms),
                "is_real": each.is_real,
            }
            for each in comparison.phases
        ],
        "setup": [{"name": name, "first": one, "second": other} for name, one, other in comparison.setup],
    }


def print_comparison(comparison: Comparison, first: str, second: str, *, file: IO[str] | None = None) -> None:
    """Verdict, interval, phases, and what was set up differently."""
    out = file or sys.stdout
    terminal.write(Text(verdict_text(comparison, second, first), style="bold"), out)
    for line in _basis(comparison):
        terminal.write(Text(line), out)
    if comparison.phases:
        out.write("\n")
        _print_phases(comparison, out)
    if comparison.setup:
        out.write("\n")
        rows = [[name, _setting(one), _setting(other)] for name, one, other in comparison.setup]
        terminal.print_table("Set up differently", ["", "first", "second"], rows, file=out)
    out.write("\n")
    terminal.write(Text(LIMITS, style="dim"), out)


def _print_phases(comparison: Comparison, out: IO[str]) -> None:
    """A table; where that does not fit, a paragraph a phase."""
    title, rows = f"Mean per {comparison.unit}", _rows(comparison)
    if terminal.width(out) >= TABLE_WIDTH:
        terminal.print_table(title, ["phase", "first", "second", "change", "interval", "real"], rows, file=out)
        return
    terminal.write(Text(title, style="bold"), out)
    for phase, before, after, change, interval, real in rows:
        within = f" ({interval})" if interval else ""
        told = {"yes": "a real change", "–": "no change can be told"}.get(real)
        terminal.print_note(phase, f"{before} → {after}", f"{change}{within}", told, file=out)


def verdict_text(comparison: Comparison, second: str, first: str) -> str:
    """In one sentence."""
    if comparison.ratio is None:
        return "Too few steps to tell a difference: steps hang together, and each run needs several stretches of them."
    if comparison.verdict == "no difference can be told":
        return f"No difference can be told between {second} and {first}."
    saved = 1 - comparison.ratio.likely
    which = f"takes {share_text(abs(saved))} {'less' if saved > 0 else 'more'} time per {comparison.unit} than"
    return f"{second} {which} {first}."


def _basis(comparison: Comparison) -> list[str]:
    times = f"{duration_text(comparison.first_ms)} → {duration_text(comparison.second_ms)} per {comparison.unit}"
    if comparison.ratio is None:
        return [f"{times} on average; {comparison.steps[0]:,} and {comparison.steps[1]:,} steps."]
    low, likely, high = comparison.ratio.low, comparison.ratio.likely, comparison.ratio.high
    lines = [f"{times}: × {likely:.3f} ({100 * CONFIDENCE:.0f} % interval {low:.3f} to {high:.3f})."]
    worth = [f"{steps:,} steps" for steps in comparison.steps]
    blocks = [number_text(each, 2) for each in comparison.independent]
    lines.append(f"From {worth[0]} and {worth[1]}, worth {blocks[0]} and {blocks[1]} that are independent.")
    return lines


def _rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for each in comparison.phases:
        figures = [duration_text(value) for value in (each.first_ms, each.second_ms)]
        mark = "yes" if each.is_real else "–"
        change = _signed(each.change_ms.likely)
        rows.append([PHASE_NAMES[each.phase], *figures, change, _interval(each.change_ms), mark])
    total = comparison.second_ms - comparison.first_ms
    sums = [duration_text(value) for value in (comparison.first_ms, comparison.second_ms)]
    return [*rows, ["all", *sums, _signed(total), "", ""]]


def _interval(interval: Interval) -> str:
    return f"{_signed(interval.low)} to {_signed(interval.high)}"


def _signed(milliseconds: float) -> str:
    return ("+" if milliseconds > 0 else "") + duration_text(milliseconds)


def _setting(value: object) -> str:
    return "unknown" if value is None else str(value)
