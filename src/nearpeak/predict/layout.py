"""What training on several devices changes of one device's memory, where that is known."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal, get_args

from nearpeak.errors import SettingError
from nearpeak.predict.step_trace import Allocation, Segment, StepTrace

__all__ = ["NCCL_BYTES", "Layout", "Scheme", "on_layout"]

MIB = 1 << 20
NCCL_BYTES = 620 * MIB
"""Outside the allocator, per communication group: 544 to 688 MiB were measured on machines of eight cards."""
Scheme = Literal["ddp", "zero1", "zero2", "fsdp"]
SHARDED: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "zero1": ("optimizer_state",),
    "zero2": ("optimizer_state", "gradients"),
    "fsdp": ("optimizer_state", "gradients", "parameters"),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How many devices hold one copy of the model, and what they share."""

    scheme: Scheme
    devices: int

    def __post_init__(self) -> None:
        if self.scheme not in get_args(Scheme):
            raise SettingError(f"layout {self.scheme!r}: must be one of {', '.join(get_args(Scheme))}.")
        if self.devices < 2:
            raise SettingError(f"layout {self.scheme} on {self.devices} device: it needs at least 2.")


def on_layout(trace: StepTrace, layout: Layout) -> StepTrace:
    """The step of one rank: shards in place of wholes, and the buffers that communication needs."""
    allocations = tuple(_sharded(each, layout) for each in trace.allocations)
    extra = _buffers(trace, layout)
    number = len(allocations) + 1
    added = tuple(Allocation(size, "workspace", "", "build", -1) for size in extra)
    segments = _with_first(trace.segments, tuple(range(number, number + len(added))))
    return replace(trace, allocations=allocations + added, segments=segments)


def _sharded(allocation: Allocation, layout: Layout) -> Allocation:
    if allocation.category not in SHARDED[layout.scheme]:
        return allocation
    return replace(allocation, bytes=-(-allocation.bytes // layout.devices))


def _buffers(trace: StepTrace, layout: Layout) -> list[int]:
    """DDP and ZeRO 1 keep a second copy of all gradients in buckets; ZeRO 2 one bucket; FSDP2 gathers two blocks at a
    time, the one that runs and the next, and reduces the gradients of one."""
    gradients = sum(each.bytes for each in trace.allocations if each.category == "gradients")
    if layout.scheme in ("ddp", "zero1"):
        return [gradients]
    largest = _largest_block_bytes(trace)
    return [2 * largest, largest] if layout.scheme == "fsdp" else [min(gradients, 500 * MIB)]


def _largest_block_bytes(trace: StepTrace) -> int:
    """Parameters of the largest unit that is gathered at once: one block of a stack, or what stands outside of them."""
    blocks: defaultdict[str, int] = defaultdict(int)
    for each in trace.allocations:
        if each.category == "parameters":
            blocks[_block_of(each.module)] += each.bytes
    return max(blocks.values(), default=0)


def _block_of(module: str) -> str:
    """``model.layers.3.mlp.up`` stands in block ``model.layers.3``."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return module


def _with_first(segments: tuple[Segment, ...], events: tuple[int, ...]) -> tuple[Segment, ...]:
    first, *others = segments
    return (replace(first, events=first.events + events), *others)
