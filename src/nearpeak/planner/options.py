"""For a run of blocks: the choices of what to keep that no other choice beats in both memory and arithmetic.

Which values to keep is a cut of least weight: a value that backward needs is kept, or its operator runs again and needs
its own operands. Few operators of a block cost arithmetic: the cut is made for each set of them that may run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from nearpeak.planner.cut import FOREVER, Network
from nearpeak.planner.graph import Block, StepGraph, Value

__all__ = ["Option", "options_of"]

SCALE = 1 << 10
"""Weights are whole numbers; a byte weighs this much."""
LEAST_TRAFFIC_PRICE = 2e-3
"""Bytes of memory worth a byte moved, where memory is all that counts: saves pointless work, costs next to nothing."""
TRAFFIC_PRICES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6)
"""Where arithmetic is not to be repeated at all: choices between keeping everything and keeping least."""
MOST_SETS = 160
"""Sets of dear operators that are tried."""


@dataclass(frozen=True, slots=True)
class Option:
    """What a run of blocks keeps, and what that saves and costs."""

    kept: frozenset[int]
    """Values that stay for backward; all others of the run that backward needs are computed again."""
    held: frozenset[int]
    """Of those computed again, the ones that stay from their first need to their last."""
    kept_bytes: int
    flops: int
    traffic_bytes: int
    again: frozenset[int]
    """Operators that run again."""
    allowed: tuple[int, ...]
    """Which of a block's operators with arithmetic were allowed to, by their rank among these."""


def options_of(
    graph: StepGraph,
    run: Sequence[Block],
    boundary: frozenset[int],
    sets: Sequence[tuple[int, ...]] | None = None,
) -> list[Option]:
    """By falling memory. `boundary` are values that later runs compute theirs from: they stay. `sets` are those that
    have proven good for one such block; None tries all."""
    return _Run(graph, run, boundary).options(sets)


class _Run:
    def __init__(self, graph: StepGraph, run: Sequence[Block], boundary: frozenset[int]) -> None:
        self.graph, self.run, self.boundary = graph, run, boundary
        own = [graph.values[number] for block in run for number in (*block.values, *block.guests)]
        self.values: dict[int, Value] = {value.number: value for value in own}
        self.guests = {number for block in run for number in block.guests}
        flops = [operator.flops for operator in graph.trace.operators]
        self.ranked = [[index for index in block.operators if flops[index]] for block in run]
        """Of each block, the operators with arithmetic."""
        self.block_of = {number: index for index, block in enumerate(run) for number in block.values}

    def options(self, sets: Sequence[tuple[int, ...]] | None) -> list[Option]:
        found = [self._everything()]
        found += [self._solved((), price) for price in TRAFFIC_PRICES]
        found += [self._solved(each, LEAST_TRAFFIC_PRICE) for each in (self._sets() if sets is None else sets)]
        return _unbeaten(found)

    def _sets(self) -> list[tuple[int, ...]]:
        """Operators with arithmetic that may run again, the same ones of each block; of many, few or nearly all."""
        most = max(map(len, self.ranked))
        sizes = sorted(range(most + 1), key=lambda size: min(size, most - size))
        return list(islice((places for size in sizes for places in combinations(range(most), size)), MOST_SETS))

    def _everything(self) -> Option:
        return self._option({number for number, value in self.values.items() if value.needed}, set(), ())

    def _solved(self, places: tuple[int, ...], traffic_price: float) -> Option:
        allowed = frozenset(ranks[place] for ranks in self.ranked for place in places if place < len(ranks))
        network = Network()
        value_node = {number: network.node() for number in self.values}
        operator_node: dict[int, int] = {}
        for number, value in self.values.items():
            if number in self.guests:
                network.edge(value_node[number], 1, value.bytes * SCALE)
                continue
            if value.needed:
                network.edge(0, value_node[number], FOREVER)
            if self._stays_anyway(value):
                continue
            if value.operator not in operator_node:
                operator_node[value.operator] = self._operator(network, value, value_node, allowed, traffic_price)
            network.edge(value_node[number], operator_node[value.operator], value.bytes * SCALE)
        reached = network.source_side()
        again = {operator for operator, node in operator_node.items() if node in reached}
        kept = {
            number
            for number, node in value_node.items()
            if node in reached
            and self.values[number].operator not in again
            and not self._stays_anyway(self.values[number])
        }
        return self._option(kept, again, places)

    def _operator(
        self,
        network: Network,
        value: Value,
        value_node: dict[int, int],
        allowed: frozenset[int],
        traffic_price: float,
    ) -> int:
        node = network.node()
        may = value.again and (not value.flops or value.operator in allowed)
        network.edge(node, 1, max(1, int(traffic_price * SCALE * value.traffic_bytes)) if may else FOREVER)
        for source in value.sources:
            if source in value_node:
                network.edge(node, value_node[source], FOREVER)
        return node

    def _stays_anyway(self, value: Value) -> bool:
        return value.lasting or value.number in self.boundary

    def _option(self, kept: set[int], again: set[int], places: tuple[int, ...]) -> Option:
        """Boundaries and what lasts are kept, too; the latter costs nothing."""
        kept = kept | {number for number, value in self.values.items() if self._stays_anyway(value)}
        made = {operator: self.graph.values[self.graph.made_by[operator][0]] for operator in again}
        return Option(
            kept=frozenset(kept),
            held=frozenset(self._held(kept, again)),
            kept_bytes=sum(self.values[number].bytes for number in kept if not self.values[number].lasting),
            flops=sum(made[operator].flops for operator in again),
            traffic_bytes=sum(made[operator].traffic_bytes for operator in again),
            again=frozenset(again),
            allowed=places,
        )

    def _held(self, kept: set[int], again: set[int]) -> set[int]:
        """Results of arithmetic, and what leads from one block into the next."""
        return {
            number
            for number, value in self.values.items()
            if number not in kept and value.operator in again and (value.flops or self._crosses(number))
        }

    def _crosses(self, number: int) -> bool:
        own = self.block_of.get(number)
        readers = (self.values[other] for other in self.values if number in self.values[other].sources)
        return own is not None and any(self.block_of.get(reader.number, own) != own for reader in readers)


def _unbeaten(options: list[Option]) -> list[Option]:
    """Without those that another one beats; by falling memory."""
    best: list[Option] = []
    for option in sorted(options, key=lambda each: (each.kept_bytes, each.flops, each.traffic_bytes)):
        if not best or (option.flops, option.traffic_bytes) < (best[-1].flops, best[-1].traffic_bytes):
            best.append(option)
    return best[::-1]
