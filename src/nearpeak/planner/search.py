"""The cheapest choices for all blocks under which no moment of a step needs more than a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nearpeak.planner.graph import Block, StepGraph
from nearpeak.planner.moments import Need, need_of
from nearpeak.planner.options import Option, options_of

__all__ = ["Chosen", "Search"]

RUN_LENGTHS = (1, 2, 3, 4, 6)
"""Blocks between two boundaries that stay."""
TRAFFIC_FLOPS = 1.0
"""What moving a byte counts for beside arithmetic: enough to prefer less of it where arithmetic is nearly equal."""
MOST_STATES = 400
ALL_SETS_OPERATORS = 7
"""Up to so many operators with arithmetic in a block, all sets of them are tried for runs of several blocks, too."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice for every block."""

    options: tuple[Option, ...]
    cost: float
    saved_bytes: int

    @property
    def kept(self) -> frozenset[int]:
        return frozenset().union(*(option.kept for option in self.options))

    @property
    def held(self) -> frozenset[int]:
        return frozenset().union(*(option.held for option in self.options))

    @property
    def traffic_bytes(self) -> int:
        return sum(option.traffic_bytes for option in self.options)


@dataclass(frozen=True, slots=True)
class _State:
    """Choices for the first blocks."""

    cost: float
    saved: int
    last: tuple[Option, _State] | None


class Search:
    """Prepared once for a step, asked for many limits."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._readers = self._later_readers()
        self._runs: dict[tuple[int, int], list[tuple[Option, Need]]] = {}
        self._fronts: dict[object, tuple[Sequence[Block], list[Option]]] = {}
        """Structure → (the first run that has it, its options)."""
        blocks = graph.blocks
        for begin in range(len(blocks)):
            for length in RUN_LENGTHS:
                run = blocks[begin : begin + length]
                if len(run) == length and (length == 1 or self._alike(run)):
                    self._runs[begin, length] = self._options(run)

    def cheapest(self, limit_bytes: int) -> Chosen | None:
        """None where no choice stays within the limit."""
        blocks = self.graph.blocks
        states: list[list[_State]] = [[] for _ in range(len(blocks) + 1)]
        states[0] = [_State(0.0, 0, None)]
        for begin in range(len(blocks)):
            states[begin] = _unbeaten(states[begin])
            for length in RUN_LENGTHS:
                for option, need in self._runs.get((begin, length), ()):
                    states[begin + length] += [
                        _State(state.cost + _cost(option), state.saved + need.saved_bytes, (option, state))
                        for state in states[begin]
                        if need.most_bytes - state.saved <= limit_bytes
                    ]
        between = self._between_bytes
        final = [state for state in states[-1] if between - state.saved <= limit_bytes]
        return _chosen(min(final, key=lambda state: state.cost)) if final else None

    @cached_property
    def least_limit(self) -> int:
        """The smallest limit, to a per mille, for which there is a choice."""
        low, high = 0, max(self.graph.live) * 2
        while high - low > high // 1000:
            middle = (low + high) // 2
            low, high = (low, middle) if self.cheapest(middle) else (middle, high)
        return high

    @property
    def _between_bytes(self) -> int:
        """The most between the last block's forward and its backward: the head, the loss and their gradients."""
        begin = max(block.forward.stop for block in self.graph.blocks)
        end = min(block.backward.start for block in self.graph.blocks)
        return max(self.graph.live[begin:end], default=0)

    def _options(self, run: Sequence[Block]) -> list[tuple[Option, Need]]:
        boundary = self._boundary(run)
        key = self._structure(run, boundary)
        if key not in self._fronts:
            self._fronts[key] = run, options_of(self.graph, run, boundary, self._proven(run))
        origin, options = self._fronts[key]
        return [(moved, need_of(self.graph, run, moved)) for moved in (_moved(each, origin, run) for each in options)]

    def _proven(self, run: Sequence[Block]) -> list[tuple[int, ...]] | None:
        """Of several blocks with many operators: the sets of these that are worth running again in one block."""
        dear = sum(1 for index in run[0].operators if self.graph.trace.operators[index].flops)
        if len(run) == 1 or dear <= ALL_SETS_OPERATORS:
            return None
        first = self._runs[self.graph.blocks.index(run[0]), 1]
        return sorted({option.allowed for option, _ in first})

    def _structure(self, run: Sequence[Block], boundary: frozenset[int]) -> object:
        """Equal for runs of blocks that differ in nothing but their place."""
        numbers = [number for block in run for number in (*block.values, *block.guests)]
        place = {number: index for index, number in enumerate(numbers)}
        rows = []
        for number in numbers:
            value = self.graph.values[number]
            operator = self.graph.trace.operators[value.operator]
            sources = tuple(place.get(source, -1) for source in value.sources)
            facts = (value.bytes, value.flops, value.again, value.needed, value.lasting, number in boundary)
            rows.append((operator.name, sources, *facts))
        return tuple(rows), tuple(len(block.values) for block in run)

    def _alike(self, run: Sequence[Block]) -> bool:
        """Chains go through blocks of one kind."""
        names = [[self.graph.trace.operators[index].name for index in block.operators] for block in run]
        return all(each == names[0] for each in names)

    def _later_readers(self) -> dict[int, set[int]]:
        """Value → places of the blocks that make something of it."""
        readers: dict[int, set[int]] = {}
        for place, block in enumerate(self.graph.blocks):
            for number in block.values:
                for source in self.graph.values[number].sources:
                    readers.setdefault(source, set()).add(place)
        return readers

    def _boundary(self, run: Sequence[Block]) -> frozenset[int]:
        """What other runs may compute theirs from."""
        places = {place for place, block in enumerate(self.graph.blocks) if block in run}
        own = [number for block in run for number in (*block.values, *block.guests)]
        return frozenset(number for number in own if self._readers.get(number, set()) - places)


def _moved(option: Option, origin: Sequence[Block], run: Sequence[Block]) -> Option:
    """The same choice for blocks elsewhere."""
    if origin is run:
        return option
    old = [number for block in origin for number in (*block.values, *block.guests)]
    new = [number for block in run for number in (*block.values, *block.guests)]
    number_there = dict(zip(old, new, strict=True))
    old_operators = [index for block in origin for index in block.operators]
    operator_there = dict(zip(old_operators, (index for block in run for index in block.operators), strict=True))
    return Option(
        kept=frozenset(number_there[number] for number in option.kept),
        held=frozenset(number_there[number] for number in option.held),
        kept_bytes=option.kept_bytes,
        flops=option.flops,
        traffic_bytes=option.traffic_bytes,
        again=frozenset(operator_there[index] for index in option.again),
        allowed=option.allowed,
    )


def _cost(option: Option) -> float:
    return option.flops + TRAFFIC_FLOPS * option.traffic_bytes


def _unbeaten(states: list[_State]) -> list[_State]:
    """Without those that cost more and save less than another one; of too many, evenly spread ones."""
    best: list[_State] = []
    for state in sorted(states, key=lambda each: (each.cost, -each.saved)):
        if not best or state.saved > best[-1].saved:
            best.append(state)
    if len(best) <= MOST_STATES:
        return best
    step = (len(best) - 1) / (MOST_STATES - 1)
    return [best[round(index * step)] for index in range(MOST_STATES)]


def _chosen(state: _State) -> Chosen:
    options: list[Option] = []
    last: _State | None = state
    while last is not None and last.last is not None:
        option, last = last.last
        options.append(option)
    return Chosen(tuple(reversed(options)), state.cost, state.saved)
