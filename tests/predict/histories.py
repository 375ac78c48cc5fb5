"""Random histories of a caching allocator, written as `torch.cuda.memory._dump_snapshot` writes them."""

from __future__ import annotations

import random
from typing import Any

from nearpeak.predict.allocator import CachingAllocator
from nearpeak.predict.allocator_settings import AllocatorSettings

KIB, MIB = 1 << 10, 1 << 20
SIZES = (100, 512, 5_000, 300 * KIB, 900 * KIB, MIB, 2 * MIB, 5 * MIB, 9 * MIB, 11 * MIB, 33 * MIB, 70 * MIB)


class Recorder:
    """Drives an allocator and writes down what a snapshot would show of it."""

    def __init__(self, settings: AllocatorSettings, seed: int = 0) -> None:
        self.allocator = CachingAllocator(settings)
        self.events: list[dict[str, Any]] = []
        self.random = random.Random(seed)
        self.live: list[tuple[int, int, int]] = []

    def play(self, requests: int, *, growth: float = 0.55) -> None:
        for _ in range(requests):
            if self.live and self.random.random() > growth:
                self.free(self.random.randrange(len(self.live)))
            else:
                self.malloc(
                    int(self.random.choice(SIZES) * self.random.uniform(0.6, 1.4)), self.random.choice((0, 0, 7))
                )

    def malloc(self, size: int, stream: int = 0, frames: list[dict[str, Any]] | None = None) -> int:
        before = self.pages()
        address = self.allocator.malloc(size, stream)
        self._note_driver(before, stream)
        self.live.append((address, size, stream))
        self._note("alloc", address, size, stream, frames)
        return address

    def free(self, position: int) -> None:
        address, size, stream = self.live.pop(position)
        self.allocator.free(address)
        self._note("free_requested", address, size, stream)
        self._note("free_completed", address, size, stream)

    def empty_cache(self) -> None:
        before = self.pages()
        self.allocator.empty_cache()
        self._note_driver(before, 0)

    def pages(self) -> dict[int, tuple[int, int, bool]]:
        """Address → (bytes, stream, expandable) of what the driver gave: segments, or single pages of 2 MiB."""
        found: dict[int, tuple[int, int, bool]] = {}
        for segment in self.segments():
            step = (2 * MIB if segment["segment_type"] == "small" else 20 * MIB) if segment["is_expandable"] else None
            for address in range(segment["address"], segment["address"] + segment["total_size"], step or 1 << 60):
                found[address] = (step or segment["total_size"], segment["stream"], segment["is_expandable"])
        return found

    def segments(self) -> list[dict[str, Any]]:
        blocks = sorted(self._blocks(), key=lambda block: block.address)
        found: list[dict[str, Any]] = []
        for block in blocks:
            if block.previous is None or not block.previous.mapped:
                kind = "small" if block.pool.small else "large"
                found.append(
                    {"device": 0, "address": block.address, "total_size": 0, "stream": block.stream, "blocks": []}
                    | {"segment_type": kind, "is_expandable": block.expandable, "segment_pool_id": (0, 0)}
                )
            found[-1]["total_size"] += block.size
            state = "inactive" if block.free else "active_allocated"
            found[-1]["blocks"].append(
                {"address": block.address, "size": block.size, "requested_size": block.requested, "state": state}
            )
        return found

    def snapshot(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"segments": self.segments(), "device_traces": [self.events], "allocator_settings": settings}

    def _blocks(self) -> Any:
        yield from self.allocator.in_use.values()
        for pool in self.allocator.pools.values():
            yield from pool.free_blocks()

    def _note_driver(self, before: dict[int, tuple[int, int, bool]], stream: int) -> None:
        after = self.pages()
        for address in sorted(before.keys() - after.keys()):
            size, owner, expandable = before[address]
            self._note("segment_unmap" if expandable else "segment_free", address, size, owner)
        for address in sorted(after.keys() - before.keys()):
            size, owner, expandable = after[address]
            self._note("segment_map" if expandable else "segment_alloc", address, size, owner)

    def _note(
        self, action: str, address: int, size: int, stream: int, frames: list[dict[str, Any]] | None = None
    ) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": 10 * len(self.events)}
        self.events.append(event | {"frames": frames or []})
