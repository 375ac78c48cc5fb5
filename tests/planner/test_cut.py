from __future__ import annotations

import random
from itertools import product

from nearpeak.planner.cut import FOREVER, Network


def cheapest(nodes: int, edges: list[tuple[int, int, int]]) -> int:
    """By trying every division of the nodes."""
    best = FOREVER
    for sides in product((True, False), repeat=nodes - 2):
        source_side = (True, False, *sides)
        best = min(best, sum(weight for a, b, weight in edges if source_side[a] and not source_side[b]))
    return best


def test_cuts_are_the_cheapest_of_all() -> None:
    draw = random.Random(5)
    for _ in range(150):
        nodes = draw.randint(3, 8)
        pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b and b != 0 and a != 1]
        edges = [(a, b, draw.randint(1, 9)) for a, b in draw.sample(pairs, draw.randint(2, len(pairs)))]
        network = Network()
        for _ in range(nodes - 2):
            network.node()
        for edge in edges:
            network.edge(*edge)
        side = network.source_side()
        assert 0 in side and 1 not in side
        assert sum(weight for a, b, weight in edges if a in side and b not in side) == cheapest(nodes, edges)


def test_edges_that_are_forever_are_not_cut() -> None:
    network = Network()
    middle = network.node()
    network.edge(0, middle, FOREVER)
    network.edge(middle, 1, 10**15)
    assert network.source_side() == {0, middle}
