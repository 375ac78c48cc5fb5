"""How much memory a choice needs, operator by operator, as its blocks run forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearpeak.planner.graph import Block, StepGraph
from nearpeak.planner.options import Option

__all__ = ["Need", "need_of"]


@dataclass(frozen=True, slots=True)
class Need:
    """Of a run of blocks under one choice."""

    most_bytes: int
    """The most that is live while the run's operators run, all else being kept."""
    saved_bytes: int
    """What the choice takes away from every moment between the run's forward and its backward."""


def need_of(graph: StepGraph, run: Sequence[Block], option: Option) -> Need:
    """From the step without recomputation and from what the choice changes in it."""
    return _Moments(graph, run, option).need()


class _Moments:
    def __init__(self, graph: StepGraph, run: Sequence[Block], option: Option) -> None:
        self.graph, self.run, self.option = graph, run, option
        own = [number for block in run for number in (*block.values, *block.guests)]
        self.values = {number: graph.values[number] for number in own}
        self._paths: dict[int, set[int]] = {}
        self.steps: dict[int, int] = {}
        """Operator → by how much live memory changes from it on."""
        self.spikes: dict[int, int] = {}
        """Operator → what is live beside it for a moment."""

    def need(self) -> Need:
        saved = 0
        for value in self.values.values():
            if value.lasting:
                continue
            if value.needed and value.number not in self.option.kept:
                self._change(value.last_read + 1, value.freed + 1, -value.bytes)
                saved += value.bytes
            elif not value.needed and value.number in self.option.kept:
                self._change(value.freed + 1, self._until(value.number) + 1, value.bytes)
                saved -= value.bytes
        self._recompute()
        return Need(self._most(), saved)

    def _change(self, begin: int, end: int, size: int) -> None:
        """From an operator until before another."""
        if begin < end:
            self.steps[begin] = self.steps.get(begin, 0) + size
            self.steps[end] = self.steps.get(end, 0) - size

    def _until(self, number: int) -> int:
        """The last operator for which something is computed from a kept value."""
        ends = [value.freed for value in self.values.values() if value.needed and number in self._roots(value.number)]
        return max(ends, default=max(block.backward.stop for block in self.run) - 1)

    def _roots(self, number: int) -> set[int]:
        """Kept values from which a value is computed."""
        roots: set[int] = set()
        waiting = [number] if number not in self.option.kept else []
        seen: set[int] = set()
        while waiting:
            for source in self.graph.values[waiting.pop()].sources:
                if source in seen or source not in self.values:
                    continue
                seen.add(source)
                roots.add(source) if source in self.option.kept else waiting.append(source)
        return roots

    def _recompute(self) -> None:
        """What is computed again: each use for itself, or from the first need to the last where it is held."""
        first_need: dict[int, int] = {}
        for value in self.values.values():
            if not value.needed or value.number in self.option.kept or value.lasting:
                continue
            for use in value.uses or (value.freed,):
                for number in self._path(value.number):
                    if number in self.option.held:
                        first_need[number] = min(first_need.get(number, use), use)
                if value.number not in self.option.held:
                    self._change(use, use + 1, value.bytes)
                    self.spikes[use] = max(self.spikes.get(use, 0), self._beside(value.number))
        for number, begin in first_need.items():
            self._change(begin, max(self._last_need(number), begin) + 1, self.graph.values[number].bytes)

    def _path(self, number: int) -> set[int]:
        """A value and those that are computed again on the way to it."""
        if number not in self._paths:
            self._paths[number] = self._walked(number)
        return self._paths[number]

    def _walked(self, number: int) -> set[int]:
        path: set[int] = set()
        waiting = [number]
        while waiting:
            each = waiting.pop()
            if each in path or each in self.option.kept or each not in self.values:
                continue
            path.add(each)
            waiting += self.graph.values[each].sources
        return path

    def _beside(self, number: int) -> int:
        """The largest operands of one operator on the way, which are there besides its result."""
        sizes = [
            sum(
                self.graph.values[source].bytes
                for source in self.graph.values[each].sources
                if self._is_passing(source)
            )
            for each in self._path(number)
        ]
        return max(sizes, default=0)

    def _is_passing(self, number: int) -> bool:
        return number in self.values and number not in self.option.kept and number not in self.option.held

    def _last_need(self, number: int) -> int:
        return max(
            (
                value.freed
                for value in self.values.values()
                if value.needed and not value.lasting and number in self._path(value.number)
            ),
            default=0,
        )

    def _most(self) -> int:
        """Along the run's own operators, forward and backward."""
        most = 0
        forward = range(min(block.forward.start for block in self.run), max(block.forward.stop for block in self.run))
        backward = range(
            min(block.backward.start for block in self.run), max(block.backward.stop for block in self.run)
        )
        changes = sorted(self.steps.items())
        position = change = 0
        for index in (*forward, *backward):
            while position < len(changes) and changes[position][0] <= index:
                change += changes[position][1]
                position += 1
            most = max(most, self.graph.live[index] + change + self.spikes.get(index, 0))
        return most
