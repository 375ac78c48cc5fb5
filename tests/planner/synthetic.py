"""Small training steps written down by hand: blocks of operators, and a backward that reads what they made."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

KIB = 1024


@dataclass(frozen=True)
class Op:
    """An operator of a block: what it reads (-1: the block's input), its result's size, its price, whether backward
    reads its result."""

    name: str
    reads: tuple[int, ...]
    kib: int
    flops: int = 0
    needed: bool = True


def step_of(block: list[Op], blocks: int, head_kib: int = 0) -> StepTrace:
    """Blocks in a row; each one's last operator makes the next one's input. Backward frees in reverse order."""
    return _Writer(block, blocks, head_kib).trace()


class _Writer:
    def __init__(self, block: list[Op], blocks: int, head_kib: int) -> None:
        self.block, self.blocks, self.head_kib = block, blocks, head_kib
        self.allocations: list[Allocation] = []
        self.operators: list[Operator] = []

    def trace(self) -> StepTrace:
        weight = self._allocate(4, "parameters", "", "build")
        inputs = self._allocate(1, "inputs", "", "input")
        forward, made = self._forward(inputs)
        backward = self._backward(made)
        return StepTrace(
            allocations=tuple(self.allocations),
            operators=tuple(self.operators),
            segments=(
                Segment("build", 0, (weight,)),
                Segment("input", 0, (inputs,)),
                Segment("forward", 0, tuple(forward)),
                Segment("backward", 0, tuple(backward)),
            ),
            parameters=1,
            trainable_parameters=1,
        )

    def _allocate(self, kib: int, category: str, module: str, phase: str) -> int:
        self.allocations.append(Allocation(kib * KIB, category, module, phase, len(self.operators)))
        return len(self.allocations)

    def _forward(self, inputs: int) -> tuple[list[int], list[list[int]]]:
        events: list[int] = []
        made: list[list[int]] = []
        given = inputs
        for index in range(self.blocks):
            own: list[int] = []
            for op in self.block:
                category = "activations" if op.needed else "temporaries"
                number = self._allocate(op.kib, category, f"layers.{index}.{op.name}", "forward")
                reads = tuple(given if each < 0 else own[each] for each in op.reads)
                self.operators.append(
                    Operator(op.name, f"layers.{index}", "forward", op.flops, 0, reads, (number,), (number,))
                )
                events.append(number)
                own.append(number)
            passing = [own[i] for i, op in enumerate(self.block[:-1]) if not op.needed]
            events += [-number for number in passing]
            if not self.block[-1].needed and index:
                events += [-made[-1][-1]]
            made.append(own)
            given = own[-1]
        if not self.block[-1].needed:
            events.append(-given)
        return events, made

    def _backward(self, made: list[list[int]]) -> list[int]:
        events: list[int] = []
        if self.head_kib:
            number = self._allocate(self.head_kib, "temporaries", "head", "backward")
            self.operators.append(Operator("head", "head", "backward", 0, 0, (), (number,), (number,)))
            events += [number, -number]
        for index in reversed(range(len(made))):
            for op, value in reversed(list(zip(self.block, made[index], strict=True))):
                number = self._allocate(1, "temporaries", f"layers.{index}", "backward")
                reads = (value,) if op.needed else ()
                self.operators.append(
                    Operator("grad", f"layers.{index}", "backward", op.flops * 2, 0, reads, (number,), (number,))
                )
                events += [number, -number]
                events += [-value] if op.needed else []
        return events
