"""Rectangles: their areas are the figures, and they fill the whole without overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.report.html.treemap import Node, squarify, treemap


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=40))
def test_areas_are_in_proportion_and_fill_the_whole(values: list[float]) -> None:
    ordered = sorted(values, reverse=True)
    tiles = squarify(ordered, 160.0, 100.0)
    for value, tile in zip(ordered, tiles, strict=True):
        assert tile.width * tile.height == pytest.approx(16_000 * value / sum(ordered), rel=1e-6)
        assert -1e-6 <= tile.x <= tile.x + tile.width <= 160 + 1e-6
        assert -1e-6 <= tile.y <= tile.y + tile.height <= 100 + 1e-6
    for i, one in enumerate(tiles):
        for other in tiles[i + 1 :]:
            wide = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            high = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert wide <= 1e-6 or high <= 1e-6


def test_equal_parts_are_near_to_squares() -> None:
    for tile in squarify([1.0] * 12, 160.0, 100.0):
        assert 0.5 <= tile.width / tile.height <= 2


def test_small_nodes_are_gathered_and_what_children_lack_is_shown() -> None:
    crumbs = tuple(Node(f"crumb {i}", 1.0) for i in range(1000))
    drawn = treemap("Memory", [Node("model", 1e6, (Node("layer", 4e5), *crumbs)), Node("rest", 1e5)], kind="bytes")
    assert drawn is not None
    assert "1000 smaller" in drawn
    assert "(itself)" in drawn
    assert "crumb 7" not in drawn


def test_nothing_is_no_picture() -> None:
    assert treemap("Memory", [Node("model", 0.0)], kind="bytes") is None
