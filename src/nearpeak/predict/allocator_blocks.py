"""What the caching allocator keeps: blocks in segments, pools of free ones, counters."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["AllocatorStatus", "Block", "Pool", "PoolKey"]

PoolKey = tuple[int, bool]
"""(0, or the id of a private pool; whether it holds small blocks)"""


class Block:
    """A run of addresses, free or in use, between its neighbours in the segment."""

    __slots__ = (
        "address",
        "age_base",
        "expandable",
        "free",
        "mapped",
        "next",
        "pool",
        "previous",
        "requested",
        "size",
        "stream",
    )

    def __init__(self, address: int, size: int, pool: Pool, stream: int, *, expandable: bool = False) -> None:
        self.address, self.size, self.pool, self.stream, self.expandable = address, size, pool, stream, expandable
        self.previous: Block | None = None
        self.next: Block | None = None
        self.free = True
        self.mapped = True
        self.requested = 0
        self.age_base = 0

    @property
    def alone(self) -> bool:
        """Whether it is its whole segment."""
        return self.previous is None and self.next is None

    @property
    def end(self) -> int:
        return self.address + self.size

    def put_between(self, before: Block | None, after: Block | None) -> None:
        """Link into the segment."""
        self.previous, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.previous = self

    def cut_front(self, size: int) -> Block:
        """Give the first bytes to a new block before this one."""
        front = Block(self.address, size, self.pool, self.stream, expandable=self.expandable)
        front.mapped = self.mapped
        front.put_between(self.previous, self)
        self.address += size
        self.size -= size
        return front

    def absorb(self, neighbour: Block) -> None:
        """Take over a neighbour's bytes."""
        if neighbour is self.previous:
            self.address = neighbour.address
            self.put_between(neighbour.previous, self.next)
        else:
            self.put_between(self.previous, neighbour.next)
        self.size += neighbour.size


@dataclass(slots=True)
class Pool:
    """Free blocks of one kind, by stream, in the order in which the best fit is looked for."""

    key: PoolKey
    cached: dict[int, list[tuple[int, int, Block]]] = field(default_factory=dict)
    """Stream → (size, address, block)."""
    unmapped: dict[int, list[tuple[int, Block]]] = field(default_factory=dict)
    """Stream → (address, block) of address space in expandable segments that has no memory behind it."""
    searches: int = 0
    """How often a block was looked for: the clock by which cached blocks age."""

    @property
    def small(self) -> bool:
        return self.key[1]

    def insert(self, block: Block) -> None:
        if block.mapped:
            block.age_base = self.searches
            bisect.insort(self.cached.setdefault(block.stream, []), (block.size, block.address, block))
        else:
            bisect.insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove(self, block: Block) -> None:
        if block.mapped:
            cached = self.cached[block.stream]
            del cached[bisect.bisect_left(cached, (block.size, block.address))]
        else:
            unmapped = self.unmapped[block.stream]
            del unmapped[bisect.bisect_left(unmapped, (block.address,))]

    def free_blocks(self) -> Iterator[Block]:
        """All cached blocks in order; the list may change while they are looked at."""
        for stream in sorted(self.cached):
            yield from [block for _, _, block in self.cached[stream]]


@dataclass(slots=True)
class AllocatorStatus:
    """Counters in bytes, as `torch.cuda.memory_stats` has them."""

    reserved: int = 0
    allocated: int = 0
    requested: int = 0
    peak_reserved: int = 0
    peak_allocated: int = 0
    peak_requested: int = 0
    retries: int = 0
    """Requests that found the device full and were tried again after cached blocks had been given back."""

    def reset_peaks(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats` does."""
        self.peak_reserved, self.peak_allocated, self.peak_requested = self.reserved, self.allocated, self.requested

    def reserve(self, size: int) -> None:
        """Count bytes taken from the driver."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def allocate(self, size: int, requested: int) -> None:
        """Count a block that goes into use."""
        self.allocated += size
        self.requested += requested
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_requested = max(self.peak_requested, self.requested)
