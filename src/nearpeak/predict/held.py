"""Explains a memory snapshot: peak, who held what at it, fragmentation, leaks, and which setting would do better."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from nearpeak.predict.allocator import CachingAllocator
from nearpeak.predict.allocator_settings import MIB, AllocatorSettings
from nearpeak.predict.replay import Replay, StartState, replay, start_state
from nearpeak.predict.sites import BEFORE_RECORDING, site_of
from nearpeak.predict.snapshot import Snapshot

__all__ = ["Fragmentation", "Holder", "Leak", "SettingTrial", "SnapshotReport", "explain"]

WINDOWS = 8
"""Into how many parts the history is cut to see whether memory grows."""
LEAST_LEAK_BYTES = MIB
WORTH_SHARE = 0.03
"""A setting is advised where it lowers reserved memory by at least this share."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A place in the code and what it held."""

    site: str
    phase: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Leak:
    """A place whose blocks are kept, more of them in each part of the history."""

    site: str
    bytes: int
    blocks: int
    bytes_per_window: float


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Memory that is reserved and not in use when most is reserved and in use."""

    free_bytes: int
    largest_free_bytes: int
    """The largest request that could be served without asking the driver."""
    share: float
    """Of the reserved memory."""


@dataclass(frozen=True, slots=True)
class SettingTrial:
    """The same requests under another `PYTORCH_CUDA_ALLOC_CONF`, from an empty device."""

    conf: str
    peak_reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """What one device's snapshot says."""

    device: int
    events: int
    reserved: int
    allocated: int
    peak_allocated: int
    peak_at_event: int | None
    """Position in the history; None: nothing in it exceeds what was held when it began."""
    peak_after_s: float | None
    peak_reserved: int
    out_of_memory: int
    """Requests that failed."""
    holders: tuple[Holder, ...]
    """At the peak, largest first."""
    fragmentation: Fragmentation
    leaks: tuple[Leak, ...]
    trials: tuple[SettingTrial, ...]
    advice: str
    replayed: Replay


@dataclass(slots=True)
class _Live:
    size: int
    site: str
    phase: str


def explain(snapshot: Snapshot) -> SnapshotReport:
    """Everything that can be said without the program that made it."""
    state = start_state(snapshot)
    played = replay(snapshot)
    peak_event = _peak_event(snapshot, state)
    trials = tuple(_trials(snapshot, state))
    in_use = [block for segment in snapshot.segments for block in segment.blocks if block.in_use]
    ooms = sum(event.action == "oom" for event in snapshot.events)
    return SnapshotReport(
        device=snapshot.device,
        events=len(snapshot.events),
        reserved=snapshot.reserved,
        allocated=sum(block.size for block in in_use),
        peak_allocated=played.peak_allocated,
        peak_at_event=peak_event,
        peak_after_s=_seconds_to(snapshot, peak_event),
        peak_reserved=played.recorded_peak_reserved,
        out_of_memory=ooms,
        holders=_holders(_live_after(snapshot, state, peak_event)),
        fragmentation=_fragmentation(snapshot, played),
        leaks=_leaks(snapshot, state),
        trials=trials,
        advice=_advice(snapshot.settings, trials, ooms),
        replayed=played,
    )


# -- peak and holders --------------------------------------------------------------------------------------------------


def _peak_event(snapshot: Snapshot, state: StartState) -> int | None:
    """The event after which most was allocated."""
    rounded = snapshot.settings.rounded
    current = best = sum(size or rounded(requested) for size, requested in state.in_use.values())
    sizes = {address: size or rounded(requested) for address, (size, requested) in state.in_use.items()}
    position: int | None = None
    for index, event in enumerate(snapshot.events):
        if event.action == "alloc":
            sizes[event.address] = rounded(event.size)
            current += sizes[event.address]
            if current > best:
                best, position = current, index
        elif event.action == "free_completed":
            current -= sizes.pop(event.address, 0)
    return position


def _seconds_to(snapshot: Snapshot, position: int | None) -> float | None:
    if position is None:
        return None
    first, at = snapshot.events[0].time_us, snapshot.events[position].time_us
    return None if first is None or at is None else (at - first) / 1e6


def _live_after(snapshot: Snapshot, state: StartState, position: int | None) -> dict[int, _Live]:
    """Blocks in use after an event; after None: when the recording began."""
    live = dict(_live_at_start(snapshot, state))
    for event in snapshot.events[: 0 if position is None else position + 1]:
        if event.action == "alloc":
            live[event.address] = _Live(event.size, *site_of(event.frames))
        elif event.action == "free_completed":
            live.pop(event.address, None)
    return live


def _live_at_start(snapshot: Snapshot, state: StartState) -> Iterator[tuple[int, _Live]]:
    """Snapshots keep frames of blocks that were allocated while history was recorded, in an earlier ring too."""
    frames = {block.address: block.frames for segment in snapshot.segments for block in segment.blocks if block.in_use}
    reused = {event.address for event in snapshot.events if event.action == "alloc"}
    for address, (size, requested) in state.in_use.items():
        known = frames.get(address, ()) if address not in reused else ()
        site, phase = site_of(known) if known else (BEFORE_RECORDING, "before")
        yield address, _Live(requested or size, site, phase)


def _holders(live: dict[int, _Live]) -> tuple[Holder, ...]:
    size: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for each in live.values():
        size[each.site, each.phase] += each.size
        count[each.site, each.phase] += 1
    return tuple(Holder(site, phase, total, count[site, phase]) for (site, phase), total in size.most_common())


def _fragmentation(snapshot: Snapshot, played: Replay) -> Fragmentation:
    free = max(0, played.recorded_peak_reserved - played.peak_allocated)
    largest = max((b.size for s in snapshot.segments for b in s.blocks if not b.in_use), default=0)
    share = free / played.recorded_peak_reserved if played.recorded_peak_reserved else 0.0
    return Fragmentation(free, largest, share)


# -- leaks -------------------------------------------------------------------------------------------------------------


def _leaks(snapshot: Snapshot, state: StartState) -> tuple[Leak, ...]:
    """Places of which more is held at the low point of each part of the history than of the part before."""
    lows = _low_points(snapshot, state)
    if len(lows) < WINDOWS:
        return ()
    held: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(lows))
    blocks: Counter[tuple[str, str]] = Counter()
    for window, low in enumerate(lows):
        for each in _live_after(snapshot, state, low).values():
            if each.phase != "before":
                held[each.site, each.phase][window] += each.size
                blocks[each.site, each.phase] += window == len(lows) - 1
    found = [
        Leak(site, sizes[-1] - sizes[0], blocks[site, phase], (sizes[-1] - sizes[0]) / (len(lows) - 1))
        for (site, phase), sizes in held.items()
        if _grows(sizes)
    ]
    return tuple(sorted(found, key=lambda leak: -leak.bytes))


def _grows(sizes: list[int]) -> bool:
    rises = sum(later > earlier for earlier, later in pairwise(sizes))
    falls = sum(later < earlier for earlier, later in pairwise(sizes))
    return sizes[-1] - sizes[0] >= LEAST_LEAK_BYTES and falls == 0 and rises >= 0.75 * (len(sizes) - 1)


def _low_points(snapshot: Snapshot, state: StartState) -> list[int]:
    """The event of least allocation in each part of the history."""
    rounded = snapshot.settings.rounded
    length = len(snapshot.events) // WINDOWS
    if length == 0:
        return []
    current = 0
    lows: list[tuple[int, int]] = []
    sizes = {address: size or rounded(requested) for address, (size, requested) in state.in_use.items()}
    for index, event in enumerate(snapshot.events[: length * WINDOWS]):
        if event.action == "alloc":
            sizes[event.address] = rounded(event.size)
            current += sizes[event.address]
        elif event.action == "free_completed":
            current -= sizes.pop(event.address, 0)
        if index % length == 0:
            lows.append((current, index))
        lows[-1] = min(lows[-1], (current, index))
    return [index for _, index in lows]


# -- settings ----------------------------------------------------------------------------------------------------------

CANDIDATES = {
    "expandable_segments:True": {"expandable_segments": True},
    "roundup_power2_divisions:8": {"roundup_power2_divisions": dict.fromkeys([1 << n for n in range(16)], 8)},
    "max_split_size_mb:256": {"max_split_bytes": 256 * MIB},
}


def _trials(snapshot: Snapshot, state: StartState) -> Iterator[SettingTrial]:
    """The recorded requests from an empty device under the present settings and each candidate."""
    yield SettingTrial("as it was", _peak_from_empty(snapshot, state, snapshot.settings))
    for conf, changes in CANDIDATES.items():
        settings = replace(snapshot.settings, **changes)
        if settings != snapshot.settings:
            yield SettingTrial(conf, _peak_from_empty(snapshot, state, settings))


def _peak_from_empty(snapshot: Snapshot, state: StartState, settings: AllocatorSettings) -> int:
    allocator = CachingAllocator(settings)
    address = {old: allocator.malloc(requested or size) for old, (size, requested) in sorted(state.in_use.items())}
    for event in snapshot.events:
        if event.action == "alloc":
            address[event.address] = allocator.malloc(event.size, event.stream)
        elif event.action == "free_completed" and event.address in address:
            allocator.free(address.pop(event.address))
    return allocator.status.peak_reserved


def _advice(settings: AllocatorSettings, trials: tuple[SettingTrial, ...], ooms: int) -> str:
    present, *others = trials
    best = min(others, key=lambda trial: trial.peak_reserved, default=present)
    saved = 1 - best.peak_reserved / present.peak_reserved if present.peak_reserved else 0.0
    if saved >= WORTH_SHARE:
        return (
            f"PYTORCH_CUDA_ALLOC_CONF={best.conf} would reserve {saved:.0%} less for the same requests "
            f"({present.peak_reserved / MIB:,.0f} → {best.peak_reserved / MIB:,.0f} MiB)."
        )
    if ooms and not settings.expandable_segments:
        return "Requests failed and no setting would have reserved much less: the step itself needs less memory."
    return "Leave the allocator as it is: no setting reserves much less for these requests."
