"""Timelines: what ran when, one lane a thread, stream or rank, however many intervals there are.

What is wider than a pixel is drawn as it is; of what is narrower, each pixel shows the kind that fills most of it, the
paler the less of it is filled. A lane costs at most as much as there are pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nearpeak.report.html.axes import Kind, axis_from
from nearpeak.report.html.charts import data_block, figure, legend
from nearpeak.report.html.markup import Html, join, tag

__all__ = ["Lane", "Piece", "pieces_of", "timeline"]

PIXELS = 1000
LANE_HEIGHT = 10
LEVELS = 4
"""Shades of how full a pixel is."""
MOST_LANES = 64


@dataclass(frozen=True, slots=True)
class Lane:
    """Intervals of one lane; those that overlap may hide one another."""

    name: str
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    kind: NDArray[np.int64]
    """Of each interval: a position in the kinds of the timeline."""
    labels: Sequence[str] | None = None
    """Of each interval, for the pointer: the name of the kernel or call."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of pixels of one shade."""

    first: int
    end: int
    kind: int
    level: int
    """1 to LEVELS: how full."""
    label: str | None = None


def timeline(
    title: str,
    lanes: Sequence[Lane],
    kinds: Mapping[str, str],
    *,
    x_kind: Kind = "ms",
    span: tuple[float, float] | None = None,
    note: str | None = None,
    aligned: bool = False,
) -> Html | None:
    """Lanes over a common axis; `kinds` gives each kind's name its colour, in the order of `Lane.kind`.

    `aligned` puts the axis under that of charts above it, and the lanes' names over the lanes.
    """
    filled = [lane for lane in lanes if len(lane.start)]
    if not filled:
        return None
    low, high = span or _span(filled)
    axis = axis_from(x_kind, low, high, marks=5, snug=True)
    names, colours = list(kinds), list(kinds.values())
    shown, hidden = filled[:MOST_LANES], len(filled) - MOST_LANES
    cut = [(lane, pieces_of(lane, axis.low, axis.high, len(names))) for lane in shown]
    marks = [
        tag("span", text, class_=_mark_class(share), style=f"left:{100 * share:.1f}%", aria_hidden="true")
        for share, text in axis.labels()
    ]
    rows = [_row(lane, pieces, names, colours) for lane, pieces in cut]
    used = sorted({piece.kind for _, pieces in cut for piece in pieces})
    notes = [note, f"{hidden} more lanes are not drawn." if hidden > 0 else None]
    body = tag(
        "div",
        rows,
        tag("div", marks, class_="lane-axis"),
        data_block({"x0": axis.low, "x1": axis.high, "xk": x_kind, "names": names}),
        class_="lanes aligned" if aligned else "lanes",
    )
    return figure(
        title,
        body,
        shown=legend([(colours[kind], names[kind], "") for kind in used]),
        note=" ".join(filter(None, notes)) or None,
    )


def pieces_of(lane: Lane, low: float, high: float, kinds: int) -> list[Piece]:
    """What is drawn of a lane: the pixels' fullest kind, neighbours of one shade joined."""
    filled, longest = _coverage(lane, low, high, kinds)
    kind = filled.argmax(axis=0)
    total = filled.sum(axis=0)
    level = np.where(total > 0, np.ceil(np.clip(total, 0, 1) * LEVELS - 1e-9), 0).astype(int)
    label = longest if lane.labels is not None else np.full(PIXELS, -1)
    changes = (np.diff(kind) != 0) | (np.diff(level) != 0) | (np.diff(label) != 0)
    edges = np.concatenate([[0], np.flatnonzero(changes) + 1, [PIXELS]])
    return [
        Piece(int(first), int(end), int(kind[first]), int(level[first]), _label(lane, int(label[first])))
        for first, end in pairwise(edges)
        if level[first] > 0
    ]


# -- drawing -----------------------------------------------------------------------------------------------------------


def _row(lane: Lane, pieces: list[Piece], names: list[str], colours: list[str]) -> Html:
    shades: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        shades.setdefault((piece.kind, piece.level), []).append(piece)
    paths = join(
        tag(
            "path",
            d="".join(f"M{p.first} 0h{p.end - p.first}v{LANE_HEIGHT}h-{p.end - p.first}z" for p in members),
            class_=f"k-{colours[kind]} full{level}",
        )
        for (kind, level), members in shades.items()
    )
    picture = tag("svg", paths, viewBox=f"0 0 {PIXELS} {LANE_HEIGHT}", preserveAspectRatio="none", aria_hidden="true")
    described = f"{lane.name}: {len(lane.start):,} intervals; {_shares(pieces, names)}"
    drawn = tag("div", picture, data_block(_figures(pieces)), class_="lane", role="img", aria_label=described)
    return tag("div", tag("span", lane.name, class_="lane-label"), drawn, class_="lane-row")


def _figures(pieces: list[Piece]) -> dict[str, object]:
    """Labels repeat: each stands once."""
    labels = sorted({piece.label for piece in pieces if piece.label})
    number = {label: position for position, label in enumerate(labels)}
    rows = [[p.first, p.end, p.kind, p.level, number.get(p.label or "", -1)] for p in pieces]
    return {"labels": labels, "p": rows}


def _shares(pieces: list[Piece], names: list[str]) -> str:
    filled: dict[int, float] = {}
    for piece in pieces:
        filled[piece.kind] = filled.get(piece.kind, 0) + (piece.end - piece.first) * piece.level / LEVELS
    return ", ".join(f"{names[kind]} about {100 * share / PIXELS:.0f} %" for kind, share in sorted(filled.items()))


def _mark_class(share: float) -> str:
    return "label x first" if share < 0.04 else "label x last" if share > 0.96 else "label x"


def _span(lanes: Sequence[Lane]) -> tuple[float, float]:
    return min(float(lane.start.min()) for lane in lanes), max(
        float((lane.start + lane.duration).max()) for lane in lanes
    )


def _label(lane: Lane, position: int) -> str | None:
    return None if lane.labels is None or position < 0 else lane.labels[position]


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _coverage(lane: Lane, low: float, high: float, kinds: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """How much of each pixel each kind fills, and which interval is the longest in it (-1: none)."""
    scale = PIXELS / (high - low) if high > low else 0.0
    start = np.clip((np.asarray(lane.start, dtype=np.float64) - low) * scale, 0, PIXELS)
    end = np.clip((np.asarray(lane.start, dtype=np.float64) + lane.duration - low) * scale, 0, PIXELS)
    inside = np.flatnonzero((end > 0) & (start < PIXELS))
    start, end, kind = start[inside], end[inside], np.asarray(lane.kind)[inside]
    first = np.minimum(start.astype(int), PIXELS - 1)
    last = np.minimum(np.ceil(end).astype(int) - 1, PIXELS - 1)
    filled = np.zeros((kinds, PIXELS))
    within = last <= first
    np.add.at(filled, (kind[within], first[within]), (end - start)[within])
    wide = np.flatnonzero(~within)
    np.add.at(filled, (kind[wide], first[wide]), first[wide] + 1 - start[wide])
    np.add.at(filled, (kind[wide], last[wide]), end[wide] - last[wide])
    _fill_whole_pixels(filled, kind[wide], first[wide], last[wide])
    return filled, _longest(inside, first, last, end - start)


def _fill_whole_pixels(
    filled: NDArray[np.float64], kind: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> None:
    """The pixels between the two ends, as differences summed up: no loop over intervals."""
    rises = np.zeros((filled.shape[0], PIXELS + 1))
    np.add.at(rises, (kind, first + 1), 1.0)
    np.add.at(rises, (kind, last), -1.0)
    filled += rises.cumsum(axis=1)[:, :PIXELS]


def _longest(
    inside: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64], length: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Short ones first, so that long ones overwrite them; only those that could win a pixel are walked through."""
    longest = np.full(PIXELS, -1, dtype=np.int64)
    order = np.argsort(length, kind="stable")
    narrow = order[last[order] <= first[order]]
    longest[first[narrow]] = inside[narrow]
    for position in order[last[order] > first[order]]:
        longest[first[position] : last[position] + 1] = inside[position]
    return longest
