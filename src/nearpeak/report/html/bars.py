"""Stacked bars: where the time of a step went, one bar a run or a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearpeak.report.figures import share_text
from nearpeak.report.html.markup import Html, tag

__all__ = ["Bar", "Slice", "stacked_bars"]


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of a bar."""

    name: str
    colour: str
    value: float
    text: str
    """The value with its unit."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its label."""

    label: str
    slices: tuple[Slice, ...]
    text: str = ""
    """Behind the bar: its sum."""


def stacked_bars(bars: Sequence[Bar], *, tall: bool = False) -> Html:
    """Bars to one scale: the longest fills the width. Each says its parts to those who cannot see it."""
    longest = max((sum(part.value for part in bar.slices) for bar in bars), default=0.0) or 1.0
    return tag("div", [_row(bar, longest) for bar in bars], class_="bars tall" if tall else "bars")


def _row(bar: Bar, longest: float) -> Html:
    described = ", ".join(f"{part.name} {part.text}" for part in bar.slices)
    track = tag(
        "div",
        [_slice(part, longest) for part in bar.slices if part.value > 0],
        class_="track",
        role="img",
        aria_label=f"{bar.label}: {described}" if bar.label else described,
    )
    label = tag("span", bar.label, class_="bar-label") if bar.label else None
    return tag("div", label, track, tag("span", bar.text, class_="bar-text") if bar.text else None, class_="bar")


def _slice(part: Slice, longest: float) -> Html:
    percent = 100 * part.value / longest
    inside = tag("span", share_text(part.value / longest)) if percent >= 9 else None
    return tag(
        "div",
        inside,
        class_=f"slice k-{part.colour}",
        style=f"width:{percent:.3f}%",
        data_tip=f"{part.name}: {part.text}",
    )
