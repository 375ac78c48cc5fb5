"""Replays a snapshot's history through `CachingAllocator`, from the state in which the recording began.

That state is not in the file: it is the last state with the history taken back, event by event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from nearpeak.predict.allocator import ROOM_BYTES, CachingAllocator
from nearpeak.predict.allocator_blocks import Block, Pool
from nearpeak.predict.allocator_settings import LARGEST_SMALL_BYTES, MIB, AllocatorSettings
from nearpeak.predict.snapshot import Snapshot, SnapshotEvent

__all__ = ["Replay", "Run", "StartState", "replay", "start_state"]

LARGE_PAGE_BYTES = 20 * MIB


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Memory from the driver in one piece."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    private_pool: int

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class StartState:
    """Memory as it was when the recording began."""

    runs: tuple[Run, ...]
    in_use: dict[int, tuple[int, int]]
    """Address → (bytes of the block, or 0 where only the request is known; bytes requested)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the simulated allocator did with the recorded requests, beside what the real one did."""

    allocations: int
    same_address: int
    peak_reserved: int
    recorded_peak_reserved: int
    segments: int
    recorded_segments: int
    peak_allocated: int

    @property
    def exact(self) -> bool:
        """Same peak, same number of segments."""
        return self.peak_reserved == self.recorded_peak_reserved and self.segments == self.recorded_segments

    @property
    def address_share(self) -> float | None:
        """Share of requests served at the very address they really got; None where none was recorded."""
        return self.same_address / self.allocations if self.allocations else None


def start_state(snapshot: Snapshot) -> StartState:
    """The last state with the history taken back."""
    runs = {each.address: each for each in _runs_of(snapshot) if not each.expandable}
    pages = {page.address: page for each in _runs_of(snapshot) if each.expandable for page in _pages(each)}
    in_use = _in_use(snapshot)
    for event in reversed(snapshot.events):
        match event.action:
            case "free_completed":
                in_use[event.address] = (0, event.size)
            case "alloc":
                in_use.pop(event.address, None)
            case "segment_alloc":
                runs.pop(event.address, None)
            case "segment_free":
                runs[event.address] = _run(event, event.size <= 2 * LARGEST_SMALL_BYTES, expandable=False)
            case "segment_map":
                for page in _pages(_mapped(event)):
                    pages.pop(page.address, None)
            case "segment_unmap":
                pages |= {page.address: page for page in _pages(_mapped(event))}
    return StartState(tuple(sorted([*runs.values(), *_joined(pages.values())])), in_use)


def replay(snapshot: Snapshot, settings: AllocatorSettings | None = None) -> Replay:
    """Feed the recorded requests to the simulated allocator. It decides alone where each block lies and when memory is
    asked for; the record tells it only where the driver put what was asked for, and what was given back."""
    state = start_state(snapshot)
    player = _Player(snapshot, state, settings or snapshot.settings)
    for event in snapshot.events:
        player.play(event)
    status = player.allocator.status
    return Replay(
        allocations=player.allocations,
        same_address=player.same_address,
        peak_reserved=status.peak_reserved,
        recorded_peak_reserved=_recorded_peak(snapshot, state),
        segments=len(player.allocator.segments()),
        recorded_segments=len(snapshot.segments),
        peak_allocated=status.peak_allocated,
    )


def _recorded_peak(snapshot: Snapshot, state: StartState) -> int:
    reserved = peak = sum(run.size for run in state.runs)
    for event in snapshot.events:
        if event.action in ("segment_alloc", "segment_map"):
            reserved += event.size
        elif event.action in ("segment_free", "segment_unmap"):
            reserved -= event.size
        peak = max(peak, reserved)
    return peak


# -- runs of memory ----------------------------------------------------------------------------------------------------


def _runs_of(snapshot: Snapshot) -> Iterable[Run]:
    for each in snapshot.segments:
        yield Run(each.address, each.size, each.stream, each.small, each.expandable, each.private_pool)


def _in_use(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    return {
        block.address: (block.size, block.requested)
        for segment in snapshot.segments
        for block in segment.blocks
        if block.in_use
    }


def _run(event: SnapshotEvent, small: bool, *, expandable: bool) -> Run:
    return Run(event.address, event.size, event.stream, small, expandable, 0)


def _mapped(event: SnapshotEvent) -> Run:
    """Large pages are mapped in twenties of MiB, small ones in twos; the record does not say which they are."""
    return _run(event, event.size % LARGE_PAGE_BYTES != 0, expandable=True)


def _pages(run: Run) -> Iterable[Run]:
    page = 2 * MIB if run.small else LARGE_PAGE_BYTES
    for address in range(run.address, run.end, page):
        yield Run(address, min(page, run.end - address), run.stream, run.small, True, run.private_pool)


def _joined(pages: Iterable[Run]) -> list[Run]:
    runs: list[Run] = []
    for page in sorted(pages):
        last = runs[-1] if runs else None
        if last is not None and last.end == page.address and (last.stream, last.small) == (page.stream, page.small):
            runs[-1] = Run(last.address, last.size + page.size, last.stream, last.small, True, last.private_pool)
        else:
            runs.append(page)
    return runs


# -- playing -----------------------------------------------------------------------------------------------------------


class _Player:
    """Holds the simulated allocator and what the record says of addresses."""

    def __init__(self, snapshot: Snapshot, state: StartState, settings: AllocatorSettings) -> None:
        self.allocator = CachingAllocator(settings, new_address=self._recorded_address)
        self.allocations = self.same_address = 0
        self._address: dict[int, int] = {}
        """Recorded → simulated, of blocks in use."""
        self._coming: deque[tuple[int, int]] = deque()
        """(address, size) of segments the driver gave, not yet asked for here."""
        self._fallback = 1 << 52
        self._private = [run for run in _runs_of(snapshot) if run.private_pool]
        _Restorer(self.allocator, state).restore()
        self._address = {address: address for address in self.allocator.in_use}
        self.allocator.status.reset_peaks()

    def play(self, event: SnapshotEvent) -> None:
        match event.action:
            case "alloc":
                self._alloc(event)
            case "free_completed":
                if event.address in self._address:
                    self.allocator.free(self._address.pop(event.address))
            case "segment_alloc" | "segment_map":
                self._coming.append((event.address, event.size))
            case "segment_free" | "segment_unmap":
                self._given_back(event)

    def _alloc(self, event: SnapshotEvent) -> None:
        address = self.allocator.malloc(event.size, event.stream, self._pool_at(event.address))
        self._coming.clear()
        self._address[event.address] = address
        self.allocations += 1
        self.same_address += address == event.address

    def _given_back(self, event: SnapshotEvent) -> None:
        for pool in self.allocator.pools.values():
            for block in pool.free_blocks():
                if block.address <= event.address < block.end:
                    if block.expandable:
                        self.allocator.unmap_pages(block)
                    elif block.alone:
                        self.allocator.release(block)
                    return

    def _recorded_address(self, size: int) -> int:
        for position, (address, recorded) in enumerate(self._coming):
            if size in (recorded, ROOM_BYTES):
                del self._coming[position]
                return address
        self._fallback += size
        return self._fallback - size

    def _pool_at(self, address: int) -> int:
        return next((run.private_pool for run in self._private if run.address <= address < run.end), 0)


class _Restorer:
    """Lays a start state out in an allocator."""

    def __init__(self, allocator: CachingAllocator, state: StartState) -> None:
        self._allocator, self._runs = allocator, state.runs
        self._blocks = sorted((address, *sizes) for address, sizes in state.in_use.items())
        self._at = 0
        self._last: dict[Pool, Block] = {}

    def restore(self) -> None:
        rooms: dict[tuple[int, bool, int], Block] = {}
        for run in self._runs:
            pool = self._allocator.pool((run.private_pool, run.small))
            last: Block | None = None
            if run.expandable:
                last = self._gap(rooms.get((run.stream, run.small, run.private_pool)), run, pool)
            for address, size, requested in self._pieces(run):
                last = self._lay(last, address, size, requested, run, pool)
            if run.expandable and last is not None:
                rooms[run.stream, run.small, run.private_pool] = last
            self._allocator.status.reserve(run.size)
        for last in rooms.values():
            self._unmapped(last, last.end, ROOM_BYTES, last.pool, last.stream)

    def _gap(self, last: Block | None, run: Run, pool: Pool) -> Block | None:
        """Between two runs of one expandable segment lies address space without memory."""
        if last is None or run.address == last.end:
            return last
        return self._unmapped(last, last.end, run.address - last.end, pool, run.stream)

    def _unmapped(self, last: Block, address: int, size: int, pool: Pool, stream: int) -> Block:
        gap = Block(address, size, pool, stream, expandable=True)
        gap.mapped = False
        gap.put_between(last, None)
        pool.insert(gap)
        return gap

    def _lay(self, last: Block | None, address: int, size: int, requested: int, run: Run, pool: Pool) -> Block:
        block = Block(address, size, pool, run.stream, expandable=run.expandable)
        block.put_between(last, None)
        if requested < 0:
            pool.insert(block)
        else:
            self._allocator.take(block, requested)
        return block

    def _pieces(self, run: Run) -> list[tuple[int, int, int]]:
        """(address, bytes, bytes requested or -1) of each block of a run, free ones between those in use."""
        pieces: list[tuple[int, int, int]] = []
        address = run.address
        while self._at < len(self._blocks) and self._blocks[self._at][0] < run.end:
            begin, size, requested = self._blocks[self._at]
            self._at += 1
            if begin < address:
                continue  # of memory that the snapshot does not show
            if begin > address:
                pieces.append((address, begin - address, -1))
            size = size or self._known_size(begin, requested, run)
            pieces.append((begin, size, requested))
            address = begin + size
        if address < run.end:
            pieces.append((address, run.end - address, -1))
        return pieces

    def _known_size(self, begin: int, requested: int, run: Run) -> int:
        """A large block is not split where at most 1 MiB would remain, nor one above the limit on splitting: the gap
        behind it belongs to it."""
        size = self._allocator.settings.rounded(requested)
        following = self._blocks[self._at][0] if self._at < len(self._blocks) else run.end
        room = min(following, run.end) - begin
        if run.small or run.expandable:
            return size
        limit = self._allocator.settings.max_split_bytes
        return room if room - size <= LARGEST_SMALL_BYTES or (limit is not None and size >= limit) else size
