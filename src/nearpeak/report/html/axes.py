"""Axes: round numbers, and the unit of each kind of figure. `page.js` knows the same kinds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nearpeak.report.figures import bytes_text, count_text, duration_text, number_text

__all__ = ["Axis", "Kind", "axis_from", "value_text"]

Kind = Literal["ms", "s", "bytes", "percent", "number", "count", "per_s", "watt", "celsius", "mhz"]
"""What the figures of an axis are: `s` is the time since a start, `ms` how long something takes."""

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
# Times in seconds are cut where clocks cut them.
CLOCK_STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, with marks at round numbers inside."""

    kind: Kind
    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Where a value lies: 0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def labels(self) -> list[tuple[float, str]]:
        """Position (0 to 1) and text of each mark."""
        return [(self.share(tick), _plain(value_text(self.kind, tick))) for tick in self.ticks]


def axis_from(kind: Kind, low: float, high: float, *, marks: int = 4, snug: bool = False) -> Axis:
    """An axis with about so many marks; it ends at a mark unless it is `snug` around its figures."""
    if not high > low:
        pad = abs(high) * 0.1 or 1.0
        low, high = (low, high + pad) if low >= 0 and low - pad < 0 else (low - pad, high + pad)
    step = _round_step(kind, (high - low) / marks)
    if not snug:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return Axis(kind, low, high, tuple((first + i) * step for i in range(count + 1)))


def value_text(kind: Kind, value: float) -> str:
    """A figure of this kind with its unit."""
    if kind == "bytes":
        return bytes_text(value)
    if kind == "ms":
        return duration_text(value)
    if kind == "s":
        return _elapsed(value)
    if kind == "count":
        return count_text(value)
    units = {"percent": " %", "per_s": "/s", "watt": " W", "celsius": " °C", "mhz": " MHz", "number": ""}
    return (count_text(value) if abs(value) >= 1e5 else _trimmed(value)) + units[kind]


def _elapsed(seconds: float) -> str:
    """As clocks say it: 12.5 s, 4:05, 3:07:00."""
    if abs(seconds) < 60:
        return f"{_trimmed(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _trimmed(value: float) -> str:
    return _plain(number_text(value))


def _plain(text: str) -> str:
    """Without zeros behind the point: `2.00 GiB` → `2 GiB`."""
    figure, space, unit = text.partition(" ")
    if "." in figure and "e" not in figure and figure[-1].isdigit():
        figure = figure.rstrip("0").rstrip(".")
    return figure + space + unit


def _round_step(kind: Kind, wanted: float) -> float:
    if kind == "s" and wanted > 45:
        return next((step for step in CLOCK_STEPS_S if step >= wanted * 0.75), 86400 * math.ceil(wanted / 86400))
    if kind == "bytes":
        return max(1.0, 2.0 ** math.ceil(math.log2(wanted) - 0.4))
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(each for each in STEPS if each * power >= wanted * 0.999) * power
    return max(1.0, step) if kind == "count" else step
