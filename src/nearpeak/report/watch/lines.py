"""Lines of text with styles: the alphabet of the live view. Pure functions; every line is exactly as wide as asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = [
    "Line",
    "Span",
    "bar",
    "fit",
    "gib_text",
    "level_style",
    "line_text",
    "percent_text",
    "rate_text",
    "spark",
    "span",
]

Span: TypeAlias = tuple[str, str]
"""Text and the name of its style: "", dim, bold, title, ok, warn, bad, chosen."""
Line: TypeAlias = tuple[Span, ...]

UNKNOWN = "–"
EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = "▁▂▃▄▅▆▇█"
GIB = 1 << 30


def span(text: str, style: str = "") -> Span:
    """A piece of a line."""
    return text, style


def fit(parts: Iterable[Span], width: int) -> Line:
    """Cut, or filled with blanks, to the width; what does not fit ends with an ellipsis."""
    taken: list[Span] = []
    left = width
    for text, style in parts:
        if not text:
            continue
        if len(text) > left:
            if left > 0:
                taken.append((text[: left - 1] + "…", style))
            return tuple(taken)
        taken.append((text, style))
        left -= len(text)
    if left:
        taken.append((" " * left, ""))
    return tuple(taken)


def line_text(line: Line) -> str:
    """Without styles."""
    return "".join(text for text, _ in line)


def bar(percent: float | None, width: int) -> str:
    """A bar of block characters; empty where nothing is known."""
    if percent is None or width <= 0:
        return " " * max(0, width)
    eighths = round(min(100.0, max(0.0, percent)) / 100 * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def spark(points: Sequence[float | None], width: int) -> str:
    """The last points as columns of eight heights; a point that is unknown is a gap."""
    shown = points[-width:] if width > 0 else []
    columns = [" " if p is None else HEIGHTS[min(7, int(max(0.0, p) / 100 * 7.999))] for p in shown]
    return "".join(columns).rjust(max(0, width))


def level_style(percent: float | None, warn: float, bad: float) -> str:
    """How alarming a share is."""
    if percent is None:
        return "dim"
    return "bad" if percent >= bad else "warn" if percent >= warn else "ok"


def percent_text(percent: float | None) -> str:
    """Four characters: `` 88%``."""
    return f"{UNKNOWN:>4}" if percent is None else f"{percent:3.0f}%"


def gib_text(size: float | None, width: int = 5) -> str:
    """Gibibytes without the unit: ``61.0``."""
    if size is None:
        return UNKNOWN.rjust(width)
    gib = size / GIB
    return (f"{gib:.1f}" if gib < 99.95 else f"{gib:.0f}").rjust(width)


def rate_text(bytes_per_s: float | None) -> str:
    """``2.1 GB/s``, in powers of 1000 as links are sold."""
    if bytes_per_s is None:
        return UNKNOWN
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            value = bytes_per_s / size
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{bytes_per_s:.0f} B/s"
