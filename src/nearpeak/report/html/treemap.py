"""Nested rectangles whose area is a figure: memory by module, time by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearpeak.report.figures import share_text
from nearpeak.report.html.axes import Kind, value_text
from nearpeak.report.html.charts import figure
from nearpeak.report.html.markup import Html, tag

__all__ = ["Node", "Tile", "squarify", "treemap"]

WIDTH, HEIGHT = 160.0, 100.0
SMALLEST_SHARE = 0.002
"""Of the whole: what is smaller is gathered into one rectangle."""
DEEPEST = 4
SERIES = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A name with its figure; its children's figures are parts of its own."""

    name: str
    value: float
    children: tuple[Node, ...] = ()
    colour: str | None = None
    """None takes the parent's, or the next of the series."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Where a rectangle lies."""

    x: float
    y: float
    width: float
    height: float


def treemap(title: str, nodes: Sequence[Node], *, kind: Kind, note: str | None = None) -> Html | None:
    """All nodes in one picture; None where their figures sum to nothing."""
    whole = sum(node.value for node in nodes)
    if whole <= 0:
        return None
    largest = sorted(nodes, key=lambda node: -node.value)[:5]
    described = ", ".join(f"{node.name} {value_text(kind, node.value)}" for node in largest)
    tiles = _tiles(_gathered(nodes, whole), whole, kind, WIDTH, HEIGHT, depth=0, colour=None)
    body = tag("div", tiles, class_="treemap", role="img", aria_label=f"{title}. Largest: {described}.")
    return figure(title, body, note=note)


def _tiles(
    nodes: list[Node], whole: float, kind: Kind, width: float, height: float, *, depth: int, colour: str | None
) -> list[Html]:
    placed = squarify([node.value for node in nodes], width, height)
    shown = []
    for position, (node, tile) in enumerate(zip(nodes, placed, strict=True)):
        own = node.colour or colour or f"s{position % SERIES + 1}"
        shown.append(_tile(node, tile, whole, kind, width, height, depth, own))
    return shown


def _tile(
    node: Node, tile: Tile, whole: float, kind: Kind, width: float, height: float, depth: int, colour: str
) -> Html:
    text = f"{value_text(kind, node.value)}, {share_text(node.value / whole)}"
    children = _gathered(_with_rest(node), whole)
    inside = None
    if node.children and depth < DEEPEST and node.value > 4 * SMALLEST_SHARE * whole:
        inner = _tiles(children, whole, kind, tile.width, tile.height, depth=depth + 1, colour=colour)
        inside = tag("div", inner, class_="inside")
    return tag(
        "div",
        tag("span", node.name, " ", tag("small", text), class_="name"),
        inside,
        class_=f"tile k-{colour}" + (" group" if inside else ""),
        style=f"left:{100 * tile.x / width:.3f}%;top:{100 * tile.y / height:.3f}%;"
        f"width:{100 * tile.width / width:.3f}%;height:{100 * tile.height / height:.3f}%",
        data_tip=f"{node.name}: {text}",
    )


def _with_rest(node: Node) -> list[Node]:
    """What the children do not account for is the node's own."""
    rest = node.value - sum(child.value for child in node.children)
    own = [Node("(itself)", rest)] if rest > 1e-9 * abs(node.value) else []
    return [*node.children, *own]


def _gathered(nodes: Sequence[Node], whole: float) -> list[Node]:
    """Largest first; the small ones as one."""
    ordered = sorted((node for node in nodes if node.value > 0), key=lambda node: -node.value)
    large = [node for node in ordered if node.value >= SMALLEST_SHARE * whole]
    small = ordered[len(large) :]
    if len(small) <= 1:
        return ordered
    return [*large, Node(f"{len(small)} smaller", sum(node.value for node in small))]


def squarify(values: list[float], width: float, height: float) -> list[Tile]:
    """Rectangles of these areas, near to squares: rows along the shorter side, each closed before it gets flatter."""
    total = sum(values)
    areas = [value / total * width * height for value in values] if total > 0 else [0.0] * len(values)
    tiles: list[Tile] = []
    x = y = 0.0
    start = 0
    while start < len(areas):
        side = min(width - x, height - y)
        end = _row_end(areas, start, side)
        row, thickness = areas[start:end], sum(areas[start:end]) / side if side > 0 else 0.0
        upright = width - x >= height - y
        tiles += _lay(row, x, y, thickness, upright)
        x, y = (x + thickness, y) if upright else (x, y + thickness)
        start = end
    return tiles


def _row_end(areas: list[float], start: int, side: float) -> int:
    end, best = start + 1, _flatness(areas[start : start + 1], side)
    while end < len(areas):
        flatness = _flatness(areas[start : end + 1], side)
        if flatness > best:
            break
        end, best = end + 1, flatness
    return end


def _flatness(row: list[float], side: float) -> float:
    total = sum(row)
    if total <= 0 or side <= 0 or min(row) <= 0:
        return float("inf")
    return max(side * side * max(row) / total**2, total**2 / (side * side * min(row)))


def _lay(row: list[float], x: float, y: float, thickness: float, upright: bool) -> list[Tile]:
    tiles, along = [], 0.0
    for area in row:
        length = area / thickness if thickness > 0 else 0.0
        tile = Tile(x, y + along, thickness, length) if upright else Tile(x + along, y, length, thickness)
        tiles.append(tile)
        along += length
    return tiles
