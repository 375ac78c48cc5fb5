"""The allocator's documented rules, one by one; whole histories are held against real ones in test_replay."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import OutOfMemoryError, SettingError
from nearpeak.predict.allocator import CachingAllocator
from nearpeak.predict.allocator_settings import AllocatorSettings, parse_settings

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("requested", "reserved"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB)],
)
def test_segment_sizes(requested: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(requested)
    assert allocator.status.reserved == reserved


def test_blocks_are_rounded_and_split_by_pool() -> None:
    allocator = CachingAllocator()
    first = allocator.malloc(100)
    assert allocator.malloc(513) == first + 512
    assert allocator.malloc(1) == first + 512 + 1024
    large = allocator.malloc(2 * MIB)
    assert allocator.malloc(17 * MIB) == large + 2 * MIB  # 1 MiB remains: too little to split off
    assert allocator.status.allocated == 512 + 1024 + 512 + 20 * MIB
    assert allocator.malloc(2 * MIB) == large + 20 * MIB  # a new segment


def test_best_fit_is_the_smallest_block_and_then_the_lowest_address() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size * MIB) for size in (40, 30, 30, 50)]
    for address in blocks:
        allocator.free(address)
    assert allocator.malloc(29 * MIB + 512 * KIB) == blocks[1]
    assert allocator.malloc(30 * MIB) == blocks[2]
    assert allocator.malloc(41 * MIB) == blocks[3]


def test_free_neighbours_merge_and_serve_what_neither_could() -> None:
    allocator = CachingAllocator()
    parts = [allocator.malloc(4 * MIB) for _ in range(5)]
    allocator.free(parts[1])
    allocator.free(parts[3])
    allocator.free(parts[2])
    assert allocator.malloc(12 * MIB) == parts[1]
    assert allocator.status.reserved == 20 * MIB


def test_streams_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB, stream=1))
    allocator.malloc(30 * MIB, stream=2)
    assert allocator.status.reserved == 60 * MIB


def test_full_device_gives_cached_segments_back_and_tries_again() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    kept = allocator.malloc(30 * MIB)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(60 * MIB)
    assert (allocator.status.retries, allocator.status.reserved) == (1, 90 * MIB)
    with pytest.raises(OutOfMemoryError, match="20,971,520 bytes more do not fit"):
        allocator.malloc(20 * MIB)
    allocator.free(kept)
    allocator.malloc(20 * MIB)


def test_limit_on_splitting_keeps_large_blocks_whole() -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_bytes=64 * MIB))
    large = allocator.malloc(100 * MIB)
    allocator.free(large)
    assert allocator.malloc(30 * MIB) != large
    assert allocator.malloc(90 * MIB) == large  # within 20 MiB of it
    assert allocator.status.allocated == 130 * MIB


def test_full_device_with_a_limit_on_splitting_gives_back_one_large_block_alone() -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_bytes=64 * MIB), capacity_bytes=300 * MIB)
    for address in [allocator.malloc(size * MIB) for size in (64, 100, 70)]:
        allocator.free(address)
    allocator.malloc(135 * MIB)
    assert allocator.status.reserved == (64 + 136) * MIB  # the one of 100 MiB went, alone
    assert allocator.status.retries == 0


def test_garbage_collection_gives_back_what_was_unused_longest() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.5)
    allocator = CachingAllocator(settings, capacity_bytes=400 * MIB)
    old, new = allocator.malloc(100 * MIB), allocator.malloc(150 * MIB)
    allocator.free(old)
    for _ in range(5):
        allocator.free(allocator.malloc(KIB))
    allocator.free(new)
    allocator.malloc(160 * MIB)
    assert allocator.status.reserved == (150 + 160) * MIB + 2 * MIB


def test_expandable_segments_grow_and_leave_no_gap() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    first = allocator.malloc(30 * MIB)
    second = allocator.malloc(50 * MIB)
    assert second == first + 30 * MIB
    assert allocator.status.reserved == 80 * MIB
    allocator.free(first)
    allocator.free(second)
    assert allocator.malloc(81 * MIB) == first
    assert allocator.status.reserved == 100 * MIB
    assert len(allocator.segments()) == 1


def test_expandable_segments_give_whole_pages_back() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    parts = [allocator.malloc(15 * MIB) for _ in range(8)]
    for address in parts[2:6]:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.status.reserved == 120 * MIB - 40 * MIB
    assert allocator.segments() == {parts[0]: 40 * MIB, parts[0] + 80 * MIB: 40 * MIB}
    assert allocator.malloc(60 * MIB) == parts[2]


def test_expandable_full_device_unmaps_what_is_free() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True), capacity_bytes=100 * MIB)
    low = allocator.malloc(60 * MIB)
    allocator.malloc(20 * MIB)
    allocator.free(low)
    allocator.malloc(80 * MIB)
    assert (allocator.status.reserved, allocator.status.retries) == (100 * MIB, 1)


def test_roundup_divides_the_interval_to_the_next_power_of_two() -> None:
    settings = parse_settings("roundup_power2_divisions:4")
    assert [settings.rounded(size) for size in (1200 * KIB, 1 << 20, 1281 * KIB, 1000)] == [
        1280 * KIB,
        1 << 20,
        1536 * KIB,
        1024,
    ]


def test_settings_are_read_as_pytorch_reads_them() -> None:
    settings = parse_settings(
        "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.6,"
        "roundup_power2_divisions:[64:8,256:4,>:2],backend:native"
    )
    assert settings.expandable_segments
    assert settings.max_split_bytes == 128 * MIB
    assert settings.garbage_collection_threshold == 0.6
    divisions = settings.roundup_power2_divisions
    assert [divisions.get(key, 0) for key in (1, 64, 128, 256, 512, 32768)] == [8, 8, 0, 4, 2, 2]


@pytest.mark.parametrize(
    ("conf", "match"),
    [
        ("max_split_size_mb:5", "at least 20"),
        ("garbage_collection_threshold:2", "below 1"),
        ("max_split_size_mb:x", "x"),
    ],
)
def test_bad_settings_are_named(conf: str, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        parse_settings(conf)


@given(seed=st.integers(0, 10_000), expandable=st.booleans())
def test_blocks_never_overlap_and_counters_agree(seed: int, expandable: bool) -> None:
    draw = random.Random(seed)
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=expandable))
    live: dict[int, int] = {}
    for _ in range(120):
        if live and draw.random() < 0.45:
            address = draw.choice(sorted(live))
            allocator.free(address)
            del live[address]
        else:
            size = int(2 ** draw.uniform(5, 26))
            live[allocator.malloc(size)] = size
    spans = sorted(live.items())
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))
    assert allocator.status.requested == sum(live.values())
    assert allocator.status.allocated >= allocator.status.requested
    assert sum(allocator.segments().values()) == allocator.status.reserved
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert (allocator.status.reserved, allocator.segments()) == (0, {})
