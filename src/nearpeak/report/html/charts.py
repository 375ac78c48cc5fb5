"""Line charts with bands and stacked areas over a common axis, as SVG that stretches and labels that do not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.report.html.axes import Axis, Kind, axis_from, value_text
from nearpeak.report.html.decimate import (
    GAP_FACTOR,
    Floats,
    Grid,
    Summary,
    bin_means,
    bin_peaks,
    bin_summary,
    grid_over,
    held,
    usual_distance,
)
from nearpeak.report.html.markup import Html, join, tag, trusted

__all__ = ["Limit", "Series", "data_block", "figure", "legend", "line_chart", "plot", "stacked_area"]

WIDTH, HEIGHT = 1000, 300
"""Of the drawing's own grid; the page stretches it."""
PEAK_FACTOR = 3
"""Rare peaks so many times higher than the rest are cut, and said."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: known points only count, the unknown (NaN) leaves a gap."""

    name: str
    x: Floats
    y: Floats
    colour: str = "s1"
    band: bool = True
    """Whether the spread of the points behind a pixel is drawn: tenths dark, extremes pale."""
    gaps: bool = True
    """Whether nothing is drawn where nothing was read for long. Steps have no gaps: a long one ends late."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A level that is drawn across: the memory of the card, the power it may take."""

    name: str
    value: float


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    y_kind: Kind,
    x_kind: Kind = "s",
    from_zero: bool = True,
    limits: Sequence[Limit] = (),
    span: tuple[float, float] | None = None,
    note: str | None = None,
) -> Html | None:
    """Lines over a common axis; None where there is no figure at all. `span` lines several charts up."""
    filled = [each for each in series if np.isfinite(each.y).any()]
    grid = _grid([each.x for each in filled], span)
    if grid is None:
        return None
    summaries = [bin_summary(grid, each.x, each.y) for each in filled]
    drawn = list(zip(filled, summaries, strict=True))
    top, cut = _top(summaries, [limit.value for limit in limits], cutting=from_zero)
    low = min(float(np.nanmin(each.low)) for each in summaries)
    y_axis = axis_from(y_kind, min(low, 0.0) if from_zero else low, top)
    x_axis = axis_from(x_kind, grid.start, grid.end, marks=5, snug=True)
    bands = [_band(each, summary, grid, y_axis) for each, summary in drawn]
    lines = [_line(each, summary, grid, y_axis) for each, summary in drawn]
    data = _data(grid, x_kind, y_kind, [_values(each, summary) for each, summary in drawn])
    described = _describe(title, filled, summaries, y_kind)
    return figure(
        title,
        plot(described, join([bands, lines]), x_axis, y_axis, data=data, limits=limits),
        shown=legend([(each.colour, each.name, "") for each in filled]) if len(filled) > 1 else None,
        note=_note(note, y_kind, cut),
    )


def stacked_area(
    title: str,
    x: Floats,
    parts: Sequence[Series],
    *,
    y_kind: Kind,
    x_kind: Kind = "s",
    peaks: bool = False,
    limits: Sequence[Limit] = (),
    span: tuple[float, float] | None = None,
    note: str | None = None,
) -> Html | None:
    """Parts on top of each other. Behind a pixel stands their mean, or with `peaks` the moment of the greatest sum."""
    filled = [each for each in parts if np.isfinite(each.y).any() and np.nanmax(np.abs(each.y)) > 0]
    grid = _grid([x], span)
    if grid is None or not filled:
        return None
    binned = bin_peaks(grid, x, [p.y for p in filled]) if peaks else [bin_means(grid, x, p.y) for p in filled]
    columns = [held(column, gaps=part.gaps) for part, column in zip(filled, binned, strict=True)]
    heights = np.nan_to_num(np.asarray(columns))
    tops = heights.cumsum(axis=0)
    top, cut = _capped(tops[-1], [limit.value for limit in limits])
    y_axis = axis_from(y_kind, 0.0, top)
    x_axis = axis_from(x_kind, grid.start, grid.end, marks=5, snug=True)
    floors = np.vstack([np.zeros_like(tops[:1]), tops[:-1]])
    areas = join(_area(p.colour, grid, f, t, y_axis) for p, f, t in zip(filled, floors, tops, strict=True))
    values = [{"n": p.name, "k": p.colour, "v": _rounded(c)} for p, c in zip(filled, columns, strict=True)]
    named = ", ".join(part.name for part in filled)
    described = f"{title}. At most {value_text(y_kind, float(tops[-1].max()))}; parts: {named}"
    return figure(
        title,
        plot(described, areas, x_axis, y_axis, data=_data(grid, x_kind, y_kind, values), limits=limits),
        shown=legend([(each.colour, each.name, "") for each in filled]),
        note=_note(note, y_kind, cut),
    )


# -- what every chart has ----------------------------------------------------------------------------------------------


def figure(title: str, body: Html, *, shown: Html | None = None, note: str | None = None) -> Html:
    """A chart with its title, legend and remark."""
    caption = tag("figcaption", tag("h3", title), shown, tag("p", note, class_="note") if note else None)
    return tag("figure", caption, body)


def legend(entries: Sequence[tuple[str, str, str]]) -> Html:
    """Colour, name and figure of each part."""
    items = (
        tag("li", tag("i", class_=f"swatch k-{colour}", aria_hidden="true"), name, tag("b", text) if text else None)
        for colour, name, text in entries
    )
    return tag("ul", items, class_="legend")


def plot(
    description: str, drawing: Html, x_axis: Axis, y_axis: Axis, *, data: Html | None, limits: Sequence[Limit] = ()
) -> Html:
    """A drawing between its axes; arrows and the pointer read figures off it where `data` is given."""
    grid_lines = join(
        tag("path", d=f"M0 {HEIGHT * (1 - share):.0f}H{WIDTH}", class_="grid") for share, _ in y_axis.labels()
    )
    visible = [limit for limit in limits if y_axis.low <= limit.value <= y_axis.high]
    levels = join(tag("path", d=f"M0 {_y(y_axis, limit.value):.0f}H{WIDTH}", class_="limit") for limit in visible)
    picture = tag(
        "svg",
        join([grid_lines, drawing, levels]),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=description,
    )
    return tag(
        "div",
        picture,
        [_label("y", "top", 100 * (1 - share), text) for share, text in y_axis.labels()],
        [_label(_x_class(share), "left", 100 * share, text) for share, text in x_axis.labels()],
        [_label("level", "top", 100 * (1 - y_axis.share(each.value)), each.name) for each in visible],
        data,
        class_="plot",
        tabindex="0" if data else None,
        role="group" if data else None,
        aria_label=f"{description}. Arrow keys read figures." if data else None,
    )


def data_block(values: object) -> Html:
    """Figures for the page's script; a string in them cannot end the block."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", trusted(safe), type="application/json")


def _note(note: str | None, kind: Kind, cut: float | None) -> str | None:
    """A remark, and what is cut off."""
    said = f"Peaks up to {value_text(kind, cut)} are cut." if cut is not None else None
    return " ".join(filter(None, [note, said])) or None


def _label(class_: str, side: str, percent: float, text: str) -> Html:
    return tag("span", text, class_=f"label {class_}", style=f"{side}:{percent:.1f}%", aria_hidden="true")


def _x_class(share: float) -> str:
    """Labels at the ends stay inside."""
    return "x first" if share < 0.04 else "x last" if share > 0.96 else "x"


def _grid(xs: list[Floats], span: tuple[float, float] | None) -> Grid | None:
    grid = grid_over(xs)
    return grid if grid is None or span is None else Grid(*span, grid.bins)


# -- lines -------------------------------------------------------------------------------------------------------------


def _top(summaries: list[Summary], levels: list[float], *, cutting: bool) -> tuple[float, float | None]:
    highs = np.concatenate([each.high for each in summaries])
    known = highs[np.isfinite(highs)]
    return _capped(known, levels) if cutting else (float(known.max()), None)


def _capped(highs: Floats, levels: list[float]) -> tuple[float, float | None]:
    """Top of the axis, and the highest figure where it is cut off."""
    highest = float(highs.max())
    usual = float(np.quantile(highs, 0.9))
    near = [level for level in levels if level <= 4 * highest]
    if usual > 0 and highest > PEAK_FACTOR * usual:
        return max([1.5 * usual, *(level for level in near if level < 2 * usual)]), highest
    return max([highest, *near]), None


def _line(series: Series, summary: Summary, grid: Grid, y_axis: Axis) -> Html:
    known = np.flatnonzero(np.isfinite(summary.median))
    xs, ys = _xs(grid)[known], _ys(y_axis, summary.median[known])
    breaks = _breaks(known, series.gaps)
    path = "".join(f"{'M' if cut else 'L'}{x} {y}" for x, y, cut in zip(xs, ys, breaks, strict=True))
    if len(known) == 1:
        path += "h1"
    return tag("path", d=path, class_=f"line k-{series.colour}")


def _band(series: Series, summary: Summary, grid: Grid, y_axis: Axis) -> Html | None:
    if not series.band:
        return None
    pale = _ribbon("extremes", series, grid, summary.low, summary.high, y_axis)
    return join([pale, _ribbon("tenths", series, grid, summary.p10, summary.p90, y_axis)])


def _ribbon(class_: str, series: Series, grid: Grid, low: Floats, high: Floats, y_axis: Axis) -> Html | None:
    """Between two lines, piece by piece where there are gaps; nothing where both are one."""
    known = np.flatnonzero(np.isfinite(low))
    bottoms, tops, xs = _ys(y_axis, low[known]), _ys(y_axis, high[known]), _xs(grid)[known]
    if not len(known) or np.abs(bottoms - tops).max() < 2:
        return None
    pieces = np.split(np.arange(len(known)), np.flatnonzero(_breaks(known, series.gaps))[1:])
    path = "".join(_outline(xs[piece], bottoms[piece], tops[piece]) for piece in pieces if len(piece) > 1)
    return tag("path", d=path, class_=f"{class_} k-{series.colour}") if path else None


def _area(colour: str, grid: Grid, floors: Floats, tops: Floats, y_axis: Axis) -> Html:
    """Steps of the width of a bin: what is drawn is what was summed."""
    edges = np.round(np.linspace(0, WIDTH, grid.bins + 1)).astype(int)
    high, low = _ys(y_axis, tops), _ys(y_axis, floors)
    there = f"M0 {high[0]}" + "".join(f"V{y}H{x}" for x, y in zip(edges[1:], high, strict=True))
    back = "".join(f"V{y}H{x}" for x, y in zip(edges[-2::-1], low[::-1], strict=True))
    return tag("path", d=f"{there}{back}Z", class_=f"area k-{colour}")


def _outline(xs: Floats, bottoms: Floats, tops: Floats) -> str:
    there = "L".join(f"{x} {y}" for x, y in zip(xs, tops, strict=True))
    back = "L".join(f"{x} {y}" for x, y in zip(xs[::-1], bottoms[::-1], strict=True))
    return f"M{there}L{back}Z"


def _breaks(known: NDArray[np.intp], gaps: bool) -> NDArray[np.bool_]:
    """Whether a new piece begins at a point."""
    return np.concatenate([[True], gaps & (np.diff(known) > GAP_FACTOR * usual_distance(known))])


def _xs(grid: Grid) -> Floats:
    return np.round((np.arange(grid.bins) + 0.5) * WIDTH / grid.bins).astype(int)


def _ys(y_axis: Axis, values: Floats) -> Floats:
    span = y_axis.high - y_axis.low
    return np.round(np.clip(HEIGHT * (1 - (values - y_axis.low) / span), -HEIGHT, 2 * HEIGHT)).astype(int)


def _y(y_axis: Axis, value: float) -> float:
    return HEIGHT * (1 - y_axis.share(value))


# -- figures for the script and for those who cannot see ---------------------------------------------------------------


def _data(grid: Grid, x_kind: Kind, y_kind: Kind, series: list[dict[str, object]]) -> Html:
    return data_block({"x0": grid.start, "x1": grid.end, "n": grid.bins, "xk": x_kind, "yk": y_kind, "s": series})


def _values(series: Series, summary: Summary) -> dict[str, object]:
    values: dict[str, object] = {
        "n": series.name,
        "k": series.colour,
        "v": _rounded(held(summary.median, gaps=series.gaps)),
    }
    if series.band and np.nanmax(summary.high - summary.low) > 0:
        low, high = (held(column, gaps=series.gaps) for column in (summary.low, summary.high))
        values |= {"lo": _rounded(low), "hi": _rounded(high)}
    return values


def _rounded(values: Floats) -> list[float | int | None]:
    """Four digits, which is what a pixel can show."""
    return [_four_digits(float(value)) for value in values]


def _four_digits(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _describe(title: str, series: list[Series], summaries: list[Summary], kind: Kind) -> str:
    """What the picture shows, in words."""
    lines = []
    for each, summary in list(zip(series, summaries, strict=True))[:8]:
        figures = (np.nanmin(summary.low), np.nanmax(summary.high), np.nanmedian(summary.median))
        low, high, middle = (value_text(kind, float(figure)) for figure in figures)
        lines.append(f"{each.name} from {low} to {high}, median {middle}")
    return f"{title}: {'; '.join(lines)}"
