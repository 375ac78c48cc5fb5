"""What the blocks of a model make in forward, of what, and when backward reads it: choices are made on this graph."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from nearpeak.predict.step_trace import Operator, StepTrace

__all__ = ["Block", "StepGraph", "Value", "step_graph"]

ROUNDING = 512
"""Bytes that the caching allocator rounds small requests to."""
BLOCK = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")
"""The outermost numbered module of a path: ``encoder.layer.3`` of ``encoder.layer.3.attention``."""
NEVER_AGAIN = ("batch_norm", "empty", "rand")
"""In the names of operators that change more than they return, or whose result others fill in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A piece of memory that an operator of a block made, or that a block reads and nobody would keep otherwise."""

    number: int
    """Of its allocation."""
    bytes: int
    operator: int
    sources: tuple[int, ...]
    """Values that its operator read."""
    flops: int
    traffic_bytes: int
    again: bool
    """Whether its operator can run a second time."""
    needed: bool
    """Whether it stays until backward without recomputation."""
    lasting: bool
    """Whether it stays longer than backward, whatever is chosen."""
    last_read: int
    """The last operator of forward that reads it."""
    freed: int
    """The operator after which it goes without recomputation."""
    uses: tuple[int, ...]
    """Operators of backward that read it."""


@dataclass(frozen=True, slots=True)
class Block:
    """A numbered module, its operators in order, and what they make."""

    path: str
    operators: tuple[int, ...]
    """Those that make something."""
    values: tuple[int, ...]
    guests: tuple[int, ...]
    """Values from outside of any block that it is the first to read."""
    forward: range
    backward: range
    """Stretches of operators, from its first to its last."""


@dataclass(frozen=True)
class StepGraph:
    """A step without recomputation."""

    trace: StepTrace
    blocks: tuple[Block, ...]
    values: dict[int, Value]
    live: list[int]
    """The most bytes allocated while each operator runs; casts of weights are made again for backward."""
    plain_peak_bytes: int
    """The most in forward and backward, casts kept."""
    backward_begin: int
    """The first operator of backward; of several micro-batches, of the first one's."""
    made_by: dict[int, tuple[int, ...]]
    """Operator → values."""

    @cached_property
    def activation_bytes(self) -> int:
        """What the forward of a micro-batch leaves for backward."""
        return sum(
            rounded(each.bytes)
            for each in self.trace.allocations
            if each.category == "activations" and each.operator < self.backward_begin
        )

    @cached_property
    def readers_in_forward(self) -> dict[int, tuple[int, ...]]:
        """Value → operators that make others of it."""
        readers: defaultdict[int, list[int]] = defaultdict(list)
        for operator, made in self.made_by.items():
            for source in self.values[made[0]].sources:
                readers[source].append(operator)
        return {number: tuple(each) for number, each in readers.items()}


def rounded(size: int) -> int:
    """As the allocator counts it."""
    return -(-size // ROUNDING) * ROUNDING


def step_graph(trace: StepTrace) -> StepGraph:
    """Read a captured step; of several micro-batches the first."""
    return _Reader(trace).graph()


class _Reader:
    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace
        phases = [operator.phase for operator in trace.operators]
        self.backward_begin = phases.index("backward")
        self.backward_end = next(
            (i for i in range(self.backward_begin, len(phases)) if phases[i] != "backward"), len(phases)
        )
        self.forward = [i for i in range(self.backward_begin) if phases[i] == "forward"]
        self._follow()
        self._read()

    def _follow(self) -> None:
        """When each allocation goes, and the most that is live at each operator."""
        trace = self.trace
        self.freed: dict[int, int] = {}
        self.live = [0] * len(trace.operators)
        live = operator = 0
        for segment in trace.segments:
            if segment.phase == "backward":
                operator = max(operator, self.backward_begin)
            for event in segment.events:
                if event > 0:
                    live += rounded(trace.allocations[event - 1].bytes)
                    operator = max(operator, min(trace.allocations[event - 1].operator, len(self.live) - 1))
                elif event < 0:
                    live -= rounded(trace.allocations[-event - 1].bytes)
                    self.freed.setdefault(-event, operator)
                self.live[operator] = max(self.live[operator], live)

    def _read(self) -> None:
        """Who reads and who changes each allocation."""
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        self.uses: defaultdict[int, list[int]] = defaultdict(list)
        self.changed: set[int] = set()
        for index in self.forward:
            operator = self.trace.operators[index]
            if operator.name.startswith("prim::"):
                continue
            for number in operator.inputs:
                self.readers[number].append(index)
            if not operator.new and "view" not in operator.name:
                self.changed.update(operator.outputs)
        for index in range(self.backward_begin, self.backward_end):
            if not self.trace.operators[index].name.startswith("prim::"):
                for number in self.trace.operators[index].inputs:
                    self.uses[number].append(index)

    def graph(self) -> StepGraph:
        paths: dict[str, list[int]] = {}
        for index in self.forward:
            path = BLOCK.match(self.trace.operators[index].module)
            if path is not None and self._made(index):
                paths.setdefault(path.group(), []).append(index)
        owned = {number for indices in paths.values() for index in indices for number in self._made(index)}
        values = {number: self._value(number, owned) for number in sorted(owned)}
        blocks: list[Block] = []
        for path, indices in paths.items():
            guests = self._guests(indices, owned)
            for number in guests:
                values[number] = self._guest(number)
            owned |= guests
            numbers = tuple(number for index in indices for number in self._made(index))
            backward = self._backward_of(path)
            if backward is not None:
                forward = range(indices[0], indices[-1] + 1)
                blocks.append(Block(path, tuple(indices), numbers, tuple(sorted(guests)), forward, backward))
        values = {
            number: self._value(number, owned) if number in self._in(blocks) else values[number] for number in values
        }
        made_by = {index: self._made(index) for block in blocks for index in block.operators}
        return StepGraph(
            trace=self.trace,
            blocks=tuple(blocks),
            values=values,
            live=self._live_without_casts(),
            plain_peak_bytes=max(self.live[: self.backward_end]),
            backward_begin=self.backward_begin,
            made_by=made_by,
        )

    def _live_without_casts(self) -> list[int]:
        """Autocast keeps casts of weights until forward ends; backward makes each again where it needs it."""
        changes = [0] * (len(self.live) + 1)
        for number, allocation in enumerate(self.trace.allocations, 1):
            if allocation.category == "autocast_cache" and self._stays(number):
                changes[self.backward_begin] -= rounded(allocation.bytes)
                uses = self.uses.get(number)
                changes[uses[0] if uses else self.freed.get(number, len(self.live))] += rounded(allocation.bytes)
        return [live + change for live, change in zip(self.live, accumulate(changes), strict=False)]

    def _in(self, blocks: list[Block]) -> set[int]:
        return {number for block in blocks for number in block.values}

    def _made(self, index: int) -> tuple[int, ...]:
        """What an operator makes; casts of weights belong to autocast."""
        allocations = self.trace.allocations
        new = self.trace.operators[index].new
        return tuple(number for number in new if allocations[number - 1].category != "autocast_cache")

    def _guests(self, indices: list[int], owned: set[int]) -> set[int]:
        """What these operators read from outside of blocks and what is gone before backward without recomputation."""
        read = {number for index in indices for number in self.trace.operators[index].inputs}
        kinds = ("temporaries",)
        return {
            number
            for number in read - owned
            if self.trace.allocations[number - 1].category in kinds
            and self.trace.allocations[number - 1].phase == "forward"
        }

    def _value(self, number: int, owned: set[int]) -> Value:
        allocation = self.trace.allocations[number - 1]
        operator = self.trace.operators[allocation.operator]
        kept = self._stays(number)
        lasting = kept and not self._goes_in_backward(number)
        return Value(
            number=number,
            bytes=rounded(allocation.bytes),
            operator=allocation.operator,
            sources=tuple(each for each in operator.inputs if each in owned and each != number),
            flops=operator.flops,
            traffic_bytes=operator.bytes,
            again=self._again(operator, number),
            needed=kept and not lasting,
            lasting=lasting,
            last_read=max(self.readers.get(number, [allocation.operator])),
            freed=self.freed.get(number, len(self.live) - 1),
            uses=tuple(self.uses.get(number, ())),
        )

    def _guest(self, number: int) -> Value:
        allocation = self.trace.allocations[number - 1]
        return Value(
            number=number,
            bytes=rounded(allocation.bytes),
            operator=allocation.operator,
            sources=(),
            flops=0,
            traffic_bytes=0,
            again=False,
            needed=False,
            lasting=False,
            last_read=max(self.readers.get(number, [allocation.operator])),
            freed=self.freed.get(number, len(self.live) - 1),
            uses=(),
        )

    def _again(self, operator: Operator, number: int) -> bool:
        changed = number in self.changed or not self.changed.isdisjoint(operator.inputs)
        return not changed and "::" not in operator.name and not any(word in operator.name for word in NEVER_AGAIN)

    def _stays(self, number: int) -> bool:
        return self.freed.get(number, len(self.live)) >= self.backward_begin

    def _goes_in_backward(self, number: int) -> bool:
        return self.freed.get(number, len(self.live)) < self.backward_end

    def _backward_of(self, path: str) -> range | None:
        """From the first operator of backward that belongs to a block to its last."""
        own = self._backward_modules.get(path)
        return None if own is None else range(own[0], own[-1] + 1)

    @cached_property
    def _backward_modules(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index in range(self.backward_begin, self.backward_end):
            path = BLOCK.match(self.trace.operators[index].module)
            if path is not None:
                found.setdefault(path.group(), []).append(index)
        return found
