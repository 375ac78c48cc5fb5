"""`CachingAllocator`: PyTorch's caching allocator of device memory, without a device.

The same requests in the same order give the same blocks at the same addresses, the same segments and the same peaks
as the allocator of PyTorch 2.x: best fit by (size, address) in a small and a large pool per stream, splitting, merging
with free neighbours, expandable segments, limits on splitting, and what happens when the device is full (cached blocks
are given back and the request is tried again).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

from nearpeak.errors import OutOfMemoryError
from nearpeak.predict.allocator_blocks import AllocatorStatus, Block, Pool, PoolKey
from nearpeak.predict.allocator_settings import (
    LARGEST_SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    SMALLEST_BLOCK_BYTES,
    AllocatorSettings,
)

__all__ = ["CachingAllocator"]

FIRST_ADDRESS = 0x7000_0000_0000
ROOM_BYTES = 1 << 42
"""Address space of one expandable segment: more than any device has, as the allocator takes it too."""


class CachingAllocator:
    """Serves requests from cached blocks and from a device of given or unlimited capacity."""

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        capacity_bytes: int | None = None,
        new_address: Callable[[int], int] | None = None,
    ) -> None:
        """`new_address(size)` says where the driver puts the next segment; by default they follow each other."""
        self.settings = settings or AllocatorSettings()
        self.capacity_bytes = capacity_bytes
        self.status = AllocatorStatus()
        self.pools: dict[PoolKey, Pool] = {}
        self.in_use: dict[int, Block] = {}
        self._next_address = FIRST_ADDRESS
        self._new_address = new_address or self._following_address

    # -- requests ------------------------------------------------------------------------------------------------------

    def malloc(self, requested: int, stream: int = 0, private_pool: int = 0) -> int:
        """Serve a request; returns the address. Raises OutOfMemoryError where the device is full."""
        size = self.settings.rounded(requested)
        pool = self.pool((private_pool, size <= LARGEST_SMALL_BYTES))
        block = self._cached_block(pool, size, stream) or self._new_block(pool, size, stream)
        if self._splits(block, size):
            rest, block = block, block.cut_front(size)
            pool.insert(rest)
        self.take(block, requested)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back to its pool; it merges with free neighbours."""
        block = self.in_use.pop(address)
        self.status.allocated -= block.size
        self.status.requested -= block.requested
        block.free, block.requested = True, 0
        self._merge_and_insert(block)

    def empty_cache(self) -> None:
        """Give cached memory back to the driver: whole free segments, and whole free pages of expandable ones."""
        for key in sorted(self.pools, key=lambda key: key[1]):  # large ones first
            self._release_pool(self.pools[key])

    def segments(self) -> dict[int, int]:
        """Address → bytes of each run of memory from the driver."""
        held = list(self.in_use.values())
        for pool in self.pools.values():
            held.extend(pool.free_blocks())
        return {block.address: _run_bytes(block) for block in held if _begins_run(block)}

    def pool(self, key: PoolKey) -> Pool:
        """The pool of that key, made when it is first asked for."""
        if key not in self.pools:
            self.pools[key] = Pool(key)
        return self.pools[key]

    def take(self, block: Block, requested: int) -> None:
        """Put a block that stands in no pool to use."""
        block.free, block.requested = False, requested
        self.in_use[block.address] = block
        self.status.allocate(block.size, requested)

    # -- from the cache ------------------------------------------------------------------------------------------------

    def _cached_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The smallest cached block that is large enough, if it may serve this request."""
        pool.searches += 1
        cached = pool.cached.get(stream)
        if not cached:
            return None
        position = bisect.bisect_left(cached, (size,))
        if position == len(cached):
            return None
        if cached[position][2].expandable:
            position = _least_room(cached, position)
        block = cached[position][2]
        if not self._may_serve(block, size):
            return None
        del cached[position]
        return block

    def _may_serve(self, block: Block, size: int) -> bool:
        """Blocks above the limit on splitting are kept for requests that need nearly all of them."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return True
        if size < limit:
            return block.size < limit
        return block.size < size + self.settings.max_non_split_rounding_bytes

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return rest >= SMALLEST_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return rest > LARGEST_SMALL_BYTES and (limit is None or size < limit)

    # -- from the driver -----------------------------------------------------------------------------------------------

    def _new_block(self, pool: Pool, size: int, stream: int) -> Block:
        if self.settings.garbage_collection_threshold and self.capacity_bytes is not None:
            self._collect_garbage(self.settings.garbage_collection_threshold * self.capacity_bytes)
        block = self._from_driver(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._from_driver(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.status.retries += 1
            block = self._from_driver(pool, size, stream)
        if block is None:
            raise OutOfMemoryError(
                f"{size:,} bytes more do not fit: of {self.capacity_bytes:,} the allocator holds "
                f"{self.status.reserved:,}, {self.status.allocated:,} of them in use."
            )
        return block

    def _from_driver(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self.settings.expandable_segments and pool.key[0] == 0:
            return self._expand(pool, size, stream)
        segment_bytes = self.settings.segment_bytes(size)
        if not self._has_room(segment_bytes):
            return None
        return self.add_segment(self._new_address(segment_bytes), segment_bytes, pool, stream)

    def add_segment(self, address: int, size: int, pool: Pool, stream: int) -> Block:
        """A segment as the driver gives it: one block that stands in no pool yet."""
        self.status.reserve(size)
        return Block(address, size, pool, stream)

    def _has_room(self, size: int) -> bool:
        return self.capacity_bytes is None or self.status.reserved + size <= self.capacity_bytes

    def _following_address(self, size: int) -> int:
        address = self._next_address
        self._next_address += -(-size // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
        return address

    # -- expandable segments -------------------------------------------------------------------------------------------

    def page_bytes(self, pool: Pool) -> int:
        """What expandable segments of this pool grow by."""
        return SMALL_SEGMENT_BYTES if pool.small else self.settings.large_segment_bytes

    def add_room(self, address: int, pool: Pool, stream: int) -> Block:
        """The address space of an expandable segment, nothing of it mapped yet."""
        room = Block(address, ROOM_BYTES, pool, stream, expandable=True)
        room.mapped = False
        pool.insert(room)
        return room

    def _expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Map pages behind a free end, or at the lowest free address, until the request fits."""
        block = self._lowest_room(pool, size, stream)
        if not block.mapped and not self.map_pages(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self.map_pages(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _lowest_room(self, pool: Pool, size: int, stream: int) -> Block:
        for _, room in pool.unmapped.get(stream, ()):
            first = room.previous if room.previous is not None and room.previous.free else room
            if _free_bytes_from(first, size) >= size:
                return first
        return self.add_room(self._new_address(ROOM_BYTES), pool, stream)

    def map_pages(self, room: Block, size: int) -> bool:
        """Put memory behind the first bytes of an unmapped block; what is mapped joins its free neighbours."""
        page = self.page_bytes(room.pool)
        mapped_bytes = min(-(-size // page) * page, room.size)
        if not self._has_room(mapped_bytes):
            return False
        pool = room.pool
        pool.remove(room)
        if mapped_bytes < room.size:
            rest = Block(room.address + mapped_bytes, room.size - mapped_bytes, pool, room.stream, expandable=True)
            rest.mapped = False
            rest.put_between(room, room.next)
            pool.insert(rest)
            room.size = mapped_bytes
        room.mapped = True
        self.status.reserve(mapped_bytes)
        self._merge_and_insert(room)
        return True

    def unmap_pages(self, block: Block) -> None:
        """Take the memory from behind the whole pages inside a free block that stands in its pool."""
        base, page, pool = _segment_base(block), self.page_bytes(block.pool), block.pool
        first = base + -(-(block.address - base) // page) * page
        last = base + (block.end - base) // page * page
        if last <= first:
            return
        pool.remove(block)
        if first > block.address:
            pool.insert(block.cut_front(first - block.address))
        if block.end > last:
            rest = block
            block = rest.cut_front(last - block.address)
            pool.insert(rest)
        block.mapped = False
        self.status.reserved -= block.size
        self._merge_and_insert(block)

    # -- back to the driver --------------------------------------------------------------------------------------------

    def release(self, block: Block) -> None:
        """Give a free block that is its whole segment back."""
        block.pool.remove(block)
        self.status.reserved -= block.size

    def _release_pool(self, pool: Pool) -> None:
        free = list(pool.free_blocks())
        for block in free:
            if not block.expandable and block.alone:
                self.release(block)
        for block in free:
            if block.expandable:
                self.unmap_pages(block)

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """With a limit on splitting: give back one cached block that is large enough, or several of the largest."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        cached = pool.cached.get(stream, [])
        position = bisect.bisect_left(cached, (wanted,))
        if position < len(cached) and not cached[position][2].expandable:
            self.release(cached[position][2])
            return True
        released = 0
        for block_bytes, _, block in reversed(cached[:]):
            if released >= wanted or block_bytes < limit:
                break
            if not block.expandable:
                self.release(block)
                released += block_bytes
        return released >= wanted

    def _collect_garbage(self, threshold_bytes: float) -> None:
        """Give back whole large segments, those unused for longer than the average first."""
        excess = self.status.reserved - int(threshold_bytes)
        pool = self.pool((0, False))
        candidates = [block for block in pool.free_blocks() if block.alone and not block.expandable]
        reclaimed = 0
        while excess > 0 and reclaimed < excess and candidates:
            ages = [pool.searches - block.age_base for block in candidates]
            average = sum(ages) / len(ages)
            old = [block for block, age in zip(candidates, ages, strict=True) if age >= average]
            candidates = [block for block, age in zip(candidates, ages, strict=True) if age < average]
            reclaimed += sum(block.size for block in old)
            for block in old:
                self.release(block)

    def _merge_and_insert(self, block: Block) -> None:
        for neighbour in (block.previous, block.next):
            if neighbour is not None and neighbour.free and neighbour.mapped == block.mapped:
                block.pool.remove(neighbour)
                block.absorb(neighbour)
        block.pool.insert(block)


def _least_room(cached: list[tuple[int, int, Block]], position: int) -> int:
    """Among blocks of expandable segments the best fit counts what each could grow to."""
    while position + 1 < len(cached) and cached[position][2].expandable:
        if _growable_bytes(cached[position + 1][2]) >= _growable_bytes(cached[position][2]):
            break
        position += 1
    return position


def _growable_bytes(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _free_bytes_from(block: Block, enough: int) -> int:
    """Free or unmapped bytes in a row from here on, counted until they are enough."""
    found, each = 0, block
    while each is not None and each.free and found < enough:
        found += each.size
        each = each.next
    return found


def _begins_run(block: Block) -> bool:
    return block.previous is None or not block.previous.mapped


def _run_bytes(first: Block) -> int:
    size, each = 0, first
    while each is not None and each.mapped:
        size += each.size
        each = each.next
    return size


def _segment_base(block: Block) -> int:
    while block.previous is not None:
        block = block.previous
    return block.address
