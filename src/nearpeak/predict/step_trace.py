"""`StepTrace`: one training step as allocations, frees and operators, and its repetition over several steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["CATEGORIES", "PHASES", "Allocation", "Operator", "OutputsUntil", "Segment", "StepTrace", "repeated"]

CATEGORIES = (
    "parameters",
    "buffers",
    "inputs",
    "activations",
    "gradients",
    "optimizer_state",
    "autocast_cache",
    "temporaries",
    "workspace",
)
"""What an allocation is for. Activations are what forward leaves for backward; temporaries end in their own phase."""
PHASES = ("build", "input", "forward", "backward", "optimizer", "zero_grad")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One request of device memory; its number is its place in `StepTrace.allocations`."""

    bytes: int
    category: str
    module: str
    """Path in the model, ``encoder.layer.3.attention``; empty for the model itself and for what stands outside."""
    phase: str
    operator: int
    """Which entry of `StepTrace.operators` asked for it; -1: none."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an operator, with what it takes to run it."""

    name: str
    module: str
    phase: str
    flops: int
    bytes: int
    """Read and written: the operands' and results' own sizes."""
    inputs: tuple[int, ...]
    """Allocations its operands lie in."""
    outputs: tuple[int, ...]
    """Allocations its results lie in, new or not."""
    new: tuple[int, ...] = ()
    """Allocations it made."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one phase. An event n > 0 is the n-th allocation, an event -n its free, 0 that the allocator gives
    its cache back."""

    phase: str
    step: int
    events: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """What running a step would ask of the device."""

    allocations: tuple[Allocation, ...]
    operators: tuple[Operator, ...]
    segments: tuple[Segment, ...]
    parameters: int
    trainable_parameters: int
    risks: tuple[str, ...] = ()
    """What makes the trace less than certain, each named."""
    steps: int = 1
    tried_bytes: tuple[int, ...] = ()
    """For each 0 among the events: the most that an algorithm took that was tried just before, beside all else."""
    facts: dict[str, str] = field(default_factory=dict)
    """Versions and choices behind it."""

    @property
    def flops(self) -> int:
        """Of one step, all phases."""
        return sum(operator.flops for operator in self.operators)


OutputsUntil = Literal["next_step", "step_end", "backward"]
"""How long the training loop holds what a forward pass returns: a variable of the loop holds it until the next step has
made its own, a function of the step until it returns, and where the loss alone is returned from a function, as in
transformers' Trainer, the rest goes before the backward pass."""


def repeated(trace: StepTrace, steps: int, *, outputs_until: OutputsUntil = "next_step") -> StepTrace:
    """The trace over several steps.

    The recording holds each kind of phase once, and the optimizer twice: its first call makes its state. Later steps
    ask for the same as the first, with new blocks. What a step leaves is its outputs, which the training loop holds.
    """
    first = [segment for segment in trace.segments if segment.step == 0]
    body = [segment for segment in first if segment.phase != "build"]
    build = [segment for segment in first if segment.phase == "build"]
    later_optimizer = [segment for segment in trace.segments if segment.step == 1]
    composer = _Composer(trace)
    composed = list(build)
    for step in range(steps):
        composed += composer.step(step, body if step == 0 else _with(body, later_optimizer), outputs_until)
    return replace(trace, allocations=tuple(composer.allocations), segments=tuple(composed), steps=steps)


def _with(body: list[Segment], optimizer: list[Segment]) -> list[Segment]:
    """The step's segments with the optimizer's second call in place of its first."""
    steady = [segment for segment in body if segment.phase != "optimizer"]
    position = next((i for i, segment in enumerate(body) if segment.phase == "optimizer"), len(body))
    return steady[:position] + optimizer + steady[position:]


class _Composer:
    """Gives repeated allocations numbers of their own."""

    def __init__(self, trace: StepTrace) -> None:
        self.allocations = list(trace.allocations)
        freed = {-event for segment in trace.segments for event in segment.events if event < 0}
        self._lasting = {
            number
            for number, allocation in enumerate(trace.allocations, 1)
            if allocation.category in ("optimizer_state", "workspace") and number not in freed
        }
        self._twins = _twins(trace)
        self._lasting -= set(self._twins.values())
        read = {number for operator in trace.operators if operator.phase == "backward" for number in operator.inputs}
        self._unread = set(range(1, len(trace.allocations) + 1)) - freed - read - self._lasting
        """Recorded numbers of what nobody frees and no backward operator reads: held by the outputs alone."""
        self._before: dict[int, int] = {}
        """`_current` as it was when the present phase began."""
        self._current: dict[int, int] = {}
        """Recorded number → that of its latest repetition."""
        self._left: set[int] = set()
        """What the last step left behind, outside the optimizer."""

    def step(self, step: int, body: list[Segment], outputs_until: OutputsUntil) -> list[Segment]:
        composed: list[Segment] = []
        live: set[int] = set()
        for segment in body:
            events: list[int] = []
            self._before = {twin: self._current[twin] for twin in self._twins.values() if twin in self._current}
            for event in segment.events:
                events += self._event(event, step, live if segment.phase != "optimizer" else set())
            if segment.phase == "forward" and outputs_until == "next_step":
                events += self._free_left()
            if segment.phase == "forward" and outputs_until == "backward":
                events += self._free_unread(segment, live)
            composed.append(Segment(segment.phase, step, tuple(events)))
        if outputs_until != "next_step" and composed:
            last = composed[-1]
            composed[-1] = replace(last, events=last.events + tuple(-number for number in sorted(live)))
            live = set()
        self._left |= live
        return composed

    def _event(self, event: int, step: int, live: set[int]) -> list[int]:
        if event == 0:
            return [0] if step == 0 else []  # algorithms are tried once
        if event > 0:
            return self._allocated(event, step, live)
        number = self._freed(-event, step)
        if number is None:
            return []
        live.discard(number)
        self._left.discard(number)
        return [-number]

    def _allocated(self, event: int, step: int, live: set[int]) -> list[int]:
        if event in self._lasting and event in self._current:
            return []  # made in an earlier step
        number = event
        if step > 0 and event in self._current:
            self.allocations.append(self.allocations[event - 1])
            number = len(self.allocations)
        self._current[event] = number
        if event not in self._lasting:
            live.add(number)
        return [number]

    def _freed(self, recorded: int, step: int) -> int | None:
        """What the free of a recorded allocation frees now: in the optimizer's later calls, what the call before made
        in its place."""
        twin = self._twins.get(recorded)
        if twin is not None and step > 1:
            return self._before.get(twin)
        return self._current.get(recorded, recorded if step == 0 else None)

    def _free_unread(self, segment: Segment, live: set[int]) -> list[int]:
        """What this forward pass left and backward does not read."""
        unread = [self._current[event] for event in segment.events if event in self._unread]
        live.difference_update(unread)
        return [-number for number in unread]

    def _free_left(self) -> list[int]:
        freed = [-number for number in sorted(self._left)]
        self._left.clear()
        return freed


def _twins(trace: StepTrace) -> dict[int, int]:
    """State that the optimizer replaces in each call: what its first call made and its second freed → what the second
    made instead."""
    first = [segment.events for segment in trace.segments if segment.phase == "optimizer" and segment.step == 0]
    second = [segment.events for segment in trace.segments if segment.phase == "optimizer" and segment.step == 1]
    if not first or not second:
        return {}
    freed_later = {-event for event in second[0] if event < 0}
    freed_at_all = {-event for segment in trace.segments for event in segment.events if event < 0}
    old = [event for event in first[0] if event > 0 and event in freed_later]
    new = [event for event in second[0] if event > 0 and event not in freed_at_all]
    if [trace.allocations[n - 1].bytes for n in old] != [trace.allocations[n - 1].bytes for n in new]:
        return {}
    return dict(zip(old, new, strict=True))
