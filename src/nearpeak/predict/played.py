"""Plays a captured step through the allocator: peaks, what is held at the peak, and the curve over time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from nearpeak.errors import OutOfMemoryError
from nearpeak.predict.allocator import CachingAllocator
from nearpeak.predict.allocator_settings import AllocatorSettings
from nearpeak.predict.step_trace import StepTrace

__all__ = ["Curve", "Played", "extrapolated", "fits_in", "play"]

CURVE_POINTS = 1200


@dataclass(frozen=True, slots=True)
class Curve:
    """Memory over the steps; the points lie where allocations and frees are, not evenly in time."""

    event: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    phases: tuple[tuple[int, str, int], ...]
    """(first event, phase, step)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the allocator holds for a trace."""

    peak_allocated: int
    peak_reserved: int
    peak_tried: int
    """Reserved for a moment while `cudnn.benchmark` has algorithms tried, on a device without limit; 0: none are."""
    peak_phase: str
    by_category: dict[str, int]
    """Allocated at the peak."""
    by_module: dict[str, dict[str, int]]
    """Module → category → bytes at the peak."""
    curve: Curve


def play(trace: StepTrace, settings: AllocatorSettings | None = None) -> Played:
    """All events of a trace in turn, on a device without limit."""
    run = _Run(trace, CachingAllocator(settings))
    for segment in trace.segments:
        run.segment(segment.phase, segment.step, segment.events)
    by_category, by_module = run.held()
    status = run.allocator.status
    return Played(
        peak_allocated=status.peak_allocated,
        peak_reserved=status.peak_reserved,
        peak_tried=run.peak_tried,
        peak_phase=run.peak[1],
        by_category=by_category,
        by_module=by_module,
        curve=run.curve(),
    )


def fits_in(trace: StepTrace, capacity_bytes: int, settings: AllocatorSettings | None = None) -> bool:
    """Whether the steps run in so much memory, cached blocks being given back where it gets full."""
    allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes)
    run = _Run(trace, allocator)
    try:
        for segment in trace.segments:
            run.segment(segment.phase, segment.step, segment.events)
    except OutOfMemoryError:
        return False
    return True


class _Run:
    """The state of a replay."""

    def __init__(self, trace: StepTrace, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.peak: tuple[int, str] = (0, "build")
        """(events until then, phase)"""
        self.peak_tried = 0
        self._tried = iter(trace.tried_bytes)
        self._trace = trace
        self._sizes = [allocation.bytes for allocation in trace.allocations]
        self._address: dict[int, int] = {}
        self._allocated: list[int] = []
        self._reserved: list[int] = []
        self._phases: list[tuple[int, str, int]] = []

    def segment(self, phase: str, step: int, events: tuple[int, ...]) -> None:
        allocator, status, address = self.allocator, self.allocator.status, self._address
        self._phases.append((len(self._allocated), phase, step))
        for event in events:
            highest = status.peak_allocated
            if event > 0:
                address[event] = allocator.malloc(self._sizes[event - 1])
            elif event == 0:
                self.peak_tried = max(self.peak_tried, status.reserved + next(self._tried, 0))
                allocator.empty_cache()
            else:
                allocator.free(address.pop(-event))
            self._allocated.append(status.allocated)
            self._reserved.append(status.reserved)
            if status.peak_allocated > highest:
                self.peak = (len(self._allocated), phase)

    def held(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """By category and by module, at the peak."""
        live: set[int] = set()
        seen = 0
        for segment in self._trace.segments:
            for event in segment.events[: self.peak[0] - seen]:
                live.add(event) if event > 0 else live.discard(-event)
            seen += len(segment.events)
            if seen >= self.peak[0]:
                break
        by_category: defaultdict[str, int] = defaultdict(int)
        by_module: defaultdict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for number in live:
            allocation = self._trace.allocations[number - 1]
            size = self.allocator.settings.rounded(allocation.bytes)
            by_category[allocation.category] += size
            by_module[allocation.module][allocation.category] += size
        return dict(by_category), {module: dict(sizes) for module, sizes in by_module.items()}

    def curve(self) -> Curve:
        """Few enough points to draw; the highest of each stretch, so that no peak is lost."""
        stretch = max(1, -(-len(self._allocated) // CURVE_POINTS))
        kept = [
            max(range(begin, min(begin + stretch, len(self._allocated))), key=self._allocated.__getitem__)
            for begin in range(0, len(self._allocated), stretch)
        ]
        return Curve(
            event=tuple(kept),
            allocated=tuple(self._allocated[index] for index in kept),
            reserved=tuple(self._reserved[index] for index in kept),
            phases=tuple(self._phases),
        )


def extrapolated(
    small: StepTrace, small_batch: int, large: StepTrace, large_batch: int, batch: int
) -> StepTrace | None:
    """The trace at another batch size, each allocation along the line through two; None where the steps differ in more
    than sizes."""
    if len(small.allocations) != len(large.allocations) or small.segments != large.segments:
        return None
    share = (batch - small_batch) / (large_batch - small_batch)
    allocations = tuple(
        replace(first, bytes=max(1, round(first.bytes + share * (second.bytes - first.bytes))))
        for first, second in zip(small.allocations, large.allocations, strict=True)
    )
    return replace(small, allocations=allocations)
