"""Every nanosecond of every step has one cause: against a reference that looks at each nanosecond by itself."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.diagnose.attribution import attribute
from nearpeak.diagnose.breakdown import Breakdown, total
from nearpeak.trace.timeline import Kind, Timeline

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

import itertools

from timelines import Row, timeline

KERNEL, EXCHANGE, COPY, LAUNCH, SYNC, INPUT, PROFILER = (
    Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY, Kind.LAUNCH, Kind.SYNC, Kind.INPUT, Kind.PROFILER,
)  # fmt: skip


def only(rows: list[Row], steps: list[tuple[int, int]]) -> Breakdown:
    return total(list(attribute(timeline(rows, steps)).steps))


def test_a_step_told_by_hand() -> None:
    rows: list[Row] = [
        (INPUT, 0, 20, "next", -1),
        (LAUNCH, 22, 3, "cudaLaunchKernel", 1),
        (KERNEL, 30, 20, "gemm", 1),  # after 10 of host work
        (EXCHANGE, 40, 30, "nccl", -1),  # 10 hidden
        (SYNC, 70, 5, "cudaStreamSynchronize", -1),
        (LAUNCH, 76, 2, "cudaLaunchKernel", 2),
        (KERNEL, 80, 5, "gemm", 2),  # launched 6 after the device had ended
        (COPY, 83, 4, "Memcpy DtoH (Device -> Pageable)", -1),  # 2 hidden
        (KERNEL, 90, 2, "gemm", 99),  # its launch is not in the trace
    ]
    found = attribute(timeline(rows, [(0, 100)]))
    step = found.steps[0]
    assert (step.compute_ns, step.communication_ns, step.copy_ns) == (27, 20, 2)
    causes = {cause: time for cause, time in step.idle_ns.items() if time}
    assert causes == {"input": 20, "host_work": 10 + 8, "sync": 5, "launch": 5, "other": 3}
    assert (found.overlapped_ns, found.whole_communication_ns) == (10, 30)
    assert list(found.copies) == ["DtoH pageable"]


@pytest.mark.parametrize(("call", "cause"), [("hipMemcpyWithStream", "sync"), ("hipMemcpyAsync", "launch")])
def test_what_a_blocking_copy_waits_beyond_its_end_is_synchronising(call: str, cause: str) -> None:
    rows: list[Row] = [
        (KERNEL, 0, 10, "gemm", -1),
        (LAUNCH, 2, 18, call, 1),
        (COPY, 10, 2, "CopyDeviceToHost", 1),
        (LAUNCH, 20, 2, "hipLaunchKernel", 2),
        (KERNEL, 22, 8, "gemm", 2),
    ]
    idle = only(rows, [(0, 30)]).idle_ns
    assert (idle[cause], idle["launch"]) == ((8, 2) if cause == "sync" else (10, 10))


@pytest.mark.parametrize(
    ("kind", "name", "cause"),
    [(KERNEL, "gemm", "launch"), (COPY, "Memcpy DtoD", "host_work"), (KERNEL, "Memset (Device)", "host_work")],
)
def test_what_comes_late_decides(kind: Kind, name: str, cause: str) -> None:
    rows: list[Row] = [(KERNEL, 0, 10, "gemm", -1), (LAUNCH, 12, 3, "cudaLaunchKernel", 1), (kind, 20, 10, name, 1)]
    assert only(rows, [(0, 30)]).idle_ns[cause] == 10


def test_a_gap_over_the_edge_of_steps_is_host_work_on_both_sides() -> None:
    rows: list[Row] = [(KERNEL, 0, 10, "k", -1), (LAUNCH, 22, 1, "cudaLaunchKernel", 1), (KERNEL, 30, 10, "k", 1)]
    first, second = attribute(timeline(rows, [(0, 20), (20, 40)])).steps
    assert first.idle_ns["host_work"] == 10 and second.idle_ns["host_work"] == 10


def test_other_threads_may_wait_as_long_as_they_like() -> None:
    rows: list[Row] = [
        (KERNEL, 0, 10, "k", -1),
        (LAUNCH, 12, 1, "l", 1),
        (SYNC, 10, 10, "s", -1),
        (KERNEL, 20, 5, "k", 1),
    ]
    line = timeline(rows, [(0, 25)])
    lanes = np.where(line.kind == Kind.SYNC, 3, line.lane).astype(np.int32)
    moved = Timeline(**{name: getattr(line, name) for name in Timeline.__slots__} | {"lane": lanes})
    assert attribute(line).steps[0].idle_ns["sync"] == 10
    assert attribute(moved).steps[0].idle_ns == {**attribute(line).steps[0].idle_ns, "sync": 0, "launch": 10}


def test_without_a_device_operators_compute() -> None:
    step = only([(Kind.OP, 0, 50, "aten::mm", -1), (INPUT, 40, 30, "next", -1)], [(0, 100)])
    assert (step.compute_ns, step.idle_ns["input"], step.idle_ns["other"]) == (40, 30, 30)


ROWS = st.lists(
    st.tuples(
        st.sampled_from([KERNEL, EXCHANGE, COPY, LAUNCH, SYNC, INPUT, PROFILER]),
        st.integers(-10, 130),
        st.integers(0, 30),
        st.sampled_from(["k", "Memset (Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD"]),
        st.integers(-1, 6),
    ),
    max_size=25,
)
EDGES = st.lists(st.integers(0, 120), min_size=2, max_size=5, unique=True)


@settings(max_examples=60)
@given(ROWS, EDGES)
def test_against_the_reference(rows: list[Row], edges: list[int]) -> None:
    edges = sorted(edges)
    steps = list(itertools.pairwise(edges))
    rows = [*rows, (KERNEL, 200, 1, "k", -1)]  # a device is there, if only later
    line = timeline(rows, steps)
    for step, (start, end), found in zip(range(len(steps)), steps, attribute(line).steps, strict=True):
        obvious = Counter(cause_at(line, moment, start, end) for moment in range(start, end))
        told = {"compute": found.compute_ns, "communication": found.communication_ns, "copy": found.copy_ns}
        assert {cause: time for cause, time in {**told, **found.idle_ns}.items() if time} == dict(obvious), step


def cause_at(line: Timeline, moment: int, start: int, end: int) -> str:
    """Slow and obvious: looks through all rows."""
    at = [row for row in range(len(line)) if line.start_ns[row] <= moment < line.end_ns[row]]
    for kind, cause in ((KERNEL, "compute"), (EXCHANGE, "communication"), (COPY, "copy"), (PROFILER, "profiler")):
        if any(line.kind[row] == kind for row in at):
            return cause
    for kind, cause in ((INPUT, "input"), (SYNC, "sync")):
        if any(line.kind[row] == kind for row in at):
            return cause
    return cause_of_gap(line, *gap_around(line, moment, start, end), start, end)


def gap_around(line: Timeline, moment: int, start: int, end: int) -> tuple[int, int]:
    def busy(when: int) -> bool:
        return any(line.kind[row] <= COPY and line.start_ns[row] <= when < line.end_ns[row] for row in range(len(line)))

    low, high = moment, moment + 1
    while low > start and not busy(low - 1):
        low -= 1
    while high < end and not busy(high):
        high += 1
    return low, high


def cause_of_gap(line: Timeline, low: int, high: int, start: int, end: int) -> str:
    if low == start or high == end:
        return "host_work"
    row = next(row for row in range(len(line)) if line.kind[row] <= COPY and line.start_ns[row] >= high)
    calls = [
        c for c in range(len(line)) if line.kind[c] == LAUNCH and 0 <= line.correlation[c] == line.correlation[row]
    ]
    if not calls or line.end_ns[calls[0]] <= low:
        return "other"
    name = line.names[line.name[row]]
    return "host_work" if line.kind[row] == COPY or name.startswith("Memset") else "launch"
