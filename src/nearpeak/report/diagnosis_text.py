"""A diagnosis on a terminal: verdict, where the time went, what to do. Readable from forty columns on."""

from __future__ import annotations

import sys
from typing import IO

from rich.padding import Padding
from rich.text import Text

from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.diagnose.gains import step_after
from nearpeak.finding import Evidence, Finding
from nearpeak.forecast import Interval
from nearpeak.report import terminal
from nearpeak.report.figures import duration_text, figure_text, gain_text, name_text, share_text
from nearpeak.report.wording import Part, folded_text, mean_step_ms, parts, subline, verdict

__all__ = ["print_breakdown", "print_devices", "print_diagnosis", "print_findings", "print_unknown"]

BAR_WIDTH = 60
# Told apart by shape where there is no colour: fuller means nearer to the device's work.
FILLS: dict[str, tuple[str, str]] = {
    "compute": ("█", "green"),
    "communication": ("▓", "magenta"),
    "copy": ("▒", "cyan"),
    "input": ("░", "yellow"),
    "host_work": ("=", "blue"),
    "launch": ("+", "bright_blue"),
    "sync": ("|", "red"),
    "straggler": ("/", "bright_magenta"),
    "profiler": ("~", "bright_black"),
    "other": ("·", "bright_black"),
}
SEVERITY_STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def print_diagnosis(diagnosis: Diagnosis, *, heading: str | None = None, file: IO[str] | None = None) -> None:
    """Print it all; under `-v` the folded findings too."""
    out = file or sys.stdout
    if heading:
        terminal.write(Text(heading, style="dim"), out)
    terminal.write(Text(verdict(diagnosis), style="bold"), out)
    if line := subline(diagnosis):
        terminal.write(Text(line), out)
    if diagnosis.facts.breakdown is not None:
        print_breakdown(diagnosis.facts.breakdown, mean_step_ms(diagnosis.facts), file=out)
    print_devices(diagnosis.facts.devices, file=out)
    print_findings(diagnosis, file=out)
    print_unknown(diagnosis.unknown, file=out)


def print_breakdown(breakdown: Breakdown, step_ms: float | None = None, *, file: IO[str] | None = None) -> None:
    """A bar whose parts sum to the step, and a line a cause."""
    out = file or sys.stdout
    shown = parts(breakdown, step_ms)
    if not shown:
        return
    width = min(BAR_WIDTH, terminal.width(out) - 4)
    out.write("\n")
    terminal.write(Padding(_bar(shown, width), (0, 0, 0, 2)), out)
    name_width = max(len(part.name) for part in shown)
    for part in shown:
        terminal.write(Padding(_legend_line(part, name_width), (0, 0, 0, 2)), out)


def print_devices(devices: tuple[DeviceFacts, ...], *, file: IO[str] | None = None) -> None:
    """A line a device: what its readings come to."""
    out = file or sys.stdout
    if devices:
        out.write("\n")
    for device in devices:
        known = (
            ("busy", device.busy_percent, "percent"),
            ("power", device.power_w, "w"),
            ("most memory", device.memory_used_bytes, "bytes"),
        )
        said = [f"{what} {figure_text(f'_{unit}', value)}" for what, value, unit in known if value is not None]
        line = Text(f"{device.label}: ")
        line.append(", ".join([*said, f"{device.readings} readings"]), style="dim")
        terminal.write(Padding(line, (0, 0, 0, 2)), out)


def print_findings(diagnosis: Diagnosis, *, file: IO[str] | None = None) -> None:
    """Each with what to do, why we think so, and how to check; small ones are counted."""
    out = file or sys.stdout
    for number, finding in enumerate(diagnosis.findings, 1):
        _print_finding(f"{number}. ", finding, diagnosis.facts.step_ms, out)
    if terminal.verbosity() > 0:
        for finding in diagnosis.folded:
            _print_finding("–  ", finding, diagnosis.facts.step_ms, out)
    elif diagnosis.folded:
        out.write("\n")
        terminal.write(Text(f"{folded_text(diagnosis)}; -v shows {_them(len(diagnosis.folded))}."), out)


def print_unknown(unknown: tuple[str, ...], *, file: IO[str] | None = None) -> None:
    """What could not be told, and why."""
    out = file or sys.stdout
    if unknown:
        out.write("\n")
        terminal.print_note("Unknown", *unknown, file=out)


# -- parts -------------------------------------------------------------------------------------------------------------


def _bar(shown: list[Part], width: int) -> Text:
    """Whole cells by largest remainder, so that the bar is exactly as wide as it should be."""
    total = sum(part.share for part in shown)
    exact = [part.share / total * width for part in shown]
    cells = [int(each) for each in exact]
    by_rest = sorted(range(len(shown)), key=lambda i: cells[i] - exact[i])
    for position in by_rest[: width - sum(cells)]:
        cells[position] += 1
    bar = Text(no_wrap=True)
    for part, count in zip(shown, cells, strict=True):
        fill, style = FILLS[part.cause]
        bar.append(fill * count, style=style)
    return bar


def _legend_line(part: Part, name_width: int) -> Text:
    fill, style = FILLS[part.cause]
    line = Text()
    line.append(fill, style=style)
    line.append(f" {part.name:<{name_width}} {share_text(part.share):>7}")
    if part.time_ms is not None:
        line.append(f"  {duration_text(part.time_ms):>8}", style="dim")
    return line


def _step_text(after_ms: Interval) -> str:
    """`: a step of 126 ms (117 to 138 ms)`."""
    low, likely, high = (duration_text(each) for each in (after_ms.low, after_ms.likely, after_ms.high))
    return f": a step of {likely} ({low} to {high})" if low != high else f": a step of {likely}"


def _print_finding(mark: str, finding: Finding, step_ms: float | None, out: IO[str]) -> None:
    out.write("\n")
    heading = Text(mark, style=SEVERITY_STYLES[finding.severity])
    heading.append(finding.title, style=SEVERITY_STYLES[finding.severity])
    terminal.write(heading, out)
    gain = Text(gain_text(finding.gain), style="green" if finding.gain else "dim")
    if finding.gain is not None and step_ms is not None:
        gain.append(_step_text(step_after(step_ms, finding.gain)), style="dim")
    terminal.write(Padding(gain, (0, 0, 0, 3)), out)
    _print_labelled("do", finding.remedy, out)
    _print_labelled("why", "; ".join(_figures_by_source(finding.evidence)), out)
    _print_labelled("check", finding.verify, out)


def _print_labelled(label: str, text: str, out: IO[str]) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=5, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(text))
    terminal.write(Padding(grid, (0, 0, 0, 3)), out)


def _figures_by_source(evidence: tuple[Evidence, ...]) -> list[str]:
    """Figures of one source stand together: `wait 91.2 ms, workers 0 (steps 10 to 109)`."""
    by_source: dict[str, list[str]] = {}
    for each in evidence:
        by_source.setdefault(each.source, []).append(f"{name_text(each.name)} {figure_text(each.name, each.value)}")
    return [f"{', '.join(figures)} ({source})" for source, figures in by_source.items()]


def _them(count: int) -> str:
    return "it" if count == 1 else "them"
