"""The chain that a step's length hangs on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nearpeak.diagnose.attribution import attribute
from nearpeak.diagnose.critical_path import critical_path
from nearpeak.trace.timeline import Kind

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from timelines import Row, timeline

KERNEL, COPY, LAUNCH, SYNC, INPUT = Kind.KERNEL, Kind.COPY, Kind.LAUNCH, Kind.SYNC, Kind.INPUT


def path(rows: list[Row], steps: list[tuple[int, int]]) -> dict[str, float]:
    line = timeline(rows, steps)
    found = critical_path(line, attribute(line))
    assert sum(found.values()) == pytest.approx(1 if found else 0)
    return {part: round(100 * share) for part, share in found.items() if share}


def test_a_host_that_waits_for_a_full_queue_hangs_on_the_device() -> None:
    rows: list[Row] = [(INPUT, 0, 10, "next", -1), (LAUNCH, 12, 2, "l", 1), (LAUNCH, 15, 2, "l", 2),
                       (KERNEL, 16, 40, "k", 1), (KERNEL, 56, 30, "k", 2), (SYNC, 20, 70, "s", -1)]  # fmt: skip
    assert path(rows, [(0, 100)]) == {"compute": 70, "input": 10, "host": 14, "handover": 6}


def test_a_host_that_does_not_wait_hangs_on_itself() -> None:
    rows: list[Row] = [(LAUNCH, 10 + 20 * n, 2, "l", n) for n in range(4)]
    rows += [(KERNEL, 15 + 20 * n, 5, "k", n) for n in range(4)]
    assert path(rows, [(0, 100)]) == {"host": 100}


def test_a_device_that_is_behind_at_the_end_decides() -> None:
    rows: list[Row] = [(LAUNCH, 2 + n, 1, "l", n) for n in range(5)] + [
        (KERNEL, 10 + 18 * n, 18, "k", n) for n in range(5)
    ]
    assert path(rows, [(0, 100)]) == {"compute": 90, "handover": 7, "host": 3}


def test_a_copy_whose_call_waits_for_it() -> None:
    rows: list[Row] = [(LAUNCH, 5, 1, "l", 1), (KERNEL, 10, 60, "k", 1), (LAUNCH, 8, 72, "cudaMemcpyAsync", 2),
                       (COPY, 70, 10, "Memcpy DtoH (Device -> Pageable)", 2)]  # fmt: skip
    assert path(rows, [(0, 100)]) == {"compute": 60, "copy": 10, "host": 26, "handover": 4}


def test_a_call_that_had_nothing_to_wait_for() -> None:
    rows: list[Row] = [(LAUNCH, 5, 1, "l", 1), (KERNEL, 10, 10, "k", 1), (SYNC, 50, 5, "s", -1)]
    assert path(rows, [(0, 100)]) == {"host": 100}


def test_without_launches_nothing_is_said() -> None:
    assert path([(KERNEL, 0, 50, "k", -1)], [(0, 100)]) == {}
