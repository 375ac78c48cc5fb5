"""Who is waited for, and how long."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.diagnose.arrivals import Arrivals, arrivals_of, blame_ns
from nearpeak.trace.timeline import Collectives, Kind, Lane, Timeline

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from timelines import timeline


def compared(timelines: list[Timeline]) -> Arrivals | None:
    return arrivals_of([(line, None) for line in timelines])


def rank(*starts: int, end: int, origin_ns: int = 0) -> Timeline:
    rows = [(Kind.COMMUNICATION, start, end * (n + 1) - start, "nccl", -1) for n, start in enumerate(starts)]
    return timeline(rows, [(0, 1000)], origin_ns=origin_ns)


def test_the_late_rank_bears_the_cost() -> None:
    found = compared([rank(10, end=100), rank(90, end=100), rank(10, end=100)])
    assert found is not None
    assert (found.waited_ns, found.cost_ns, found.exchanges) == ((80, 0, 80), (0, 160, 0), 1)


def test_two_late_ranks_share_it() -> None:
    assert blame_ns(np.array([[0], [60], [60], [90]]))[:, 0].tolist() == [0, 20, 20, 20 + 90]


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=4, max_size=4), min_size=2, max_size=9))
def test_costs_sum_to_waits(arrival: list[list[int]]) -> None:
    times = np.array(arrival)
    assert np.isclose(blame_ns(times).sum(), (times.max(axis=0) - times).sum())
    assert np.all(blame_ns(times) >= 0)


def test_clocks_are_brought_together() -> None:
    apart = 3_000_000_000
    found = compared([rank(10, end=100), rank(90, end=100, origin_ns=apart), rank(10, end=100)])
    assert found is not None and found.clock_corrected
    assert found.cost_ns == (0, 160, 0)


def test_ranks_that_cannot_be_compared() -> None:
    assert compared([rank(1, end=10)]) is None
    assert compared([rank(1, end=10), timeline([], [(0, 10)])]) is None
    assert compared([rank(*range(1, 40), end=50), rank(1, end=10)]) is None


def test_operations_are_compared_one_by_one() -> None:
    def with_two(late: int) -> Timeline:
        rows = [(Kind.COMMUNICATION, 10 + late, 90 - late, "ncclDevKernel_AllReduce_Sum", -1)]
        rows += [(Kind.COMMUNICATION, 200, 50, "ncclDevKernel_SendRecv", -1)] * (3 if late else 1)
        return timeline(rows, [(0, 1000)])

    found = compared([with_two(0), with_two(40)])
    assert found is not None
    assert (found.exchanges, found.cost_ns) == (1, (0, 40))


def test_devices_of_one_process() -> None:
    lanes = tuple(Lane(process="device", thread="1", device=device) for device in (0, 0, 1, 1))
    rows = [(Kind.COMMUNICATION, start, 100 - start, "nccl", -1) for start in (10, 70)]
    line = timeline(rows, [(0, 1000)], lanes=lanes)
    line = Timeline(**{n: getattr(line, n) for n in Timeline.__slots__} | {"lane": np.array([0, 2], np.int32)})
    found = arrivals_of([(line, 0), (line, 1)])
    assert found is not None and found.cost_ns == (0, 60)


def test_groups_of_the_same_size_are_told_by_their_names_alone() -> None:
    """Four ranks in two groups of two: without names it is not known who waits for whom."""

    def grouped(start: int, name: str) -> Timeline:
        told = Collectives(
            row=np.array([0]), n_bytes=np.array([8]), group_size=np.array([2]), operation=("",), group=(name,)
        )
        rows = [(Kind.COMMUNICATION, start, 100 - start, "ncclDevKernel_AllReduce", -1)]
        return timeline(rows, [(0, 1000)], collectives=told)

    starts = (10, 30, 20, 90)
    named = compared([grouped(start, name) for start, name in zip(starts, ("a", "a", "b", "b"), strict=True)])
    assert named is not None and named.cost_ns == (0, 20, 0, 70)
    assert compared([grouped(start, "") for start in starts]) is None


def many(skew_ns: int, late_ns: int, jitter_ns: int) -> Timeline:
    """Thirty exchanges that end together but for jitter; the rank comes to each `late_ns` late."""
    rows = []
    for number in range(30):
        begin = 1_000_000 * number + late_ns
        end = 1_000_000 * number + 600_000 + jitter_ns * (-1) ** number
        rows.append((Kind.COMMUNICATION, begin, end - begin, "ncclDevKernel_AllReduce", -1))
    return timeline(rows, [(0, 40_000_000)], origin_ns=skew_ns)


def test_clocks_that_are_a_little_apart_make_no_straggler() -> None:
    """Half a millisecond between two machines, thirty exchanges a step: no rank was late but the third."""
    found = compared([many(0, 0, 2_000), many(500_000, 0, 2_000), many(500_000, 100_000, 2_000)])
    assert found is not None and found.clock_corrected
    assert found.cost_ns == (0, 0, 2 * 30 * 100_000)


def test_ends_that_differ_by_themselves_are_no_clocks() -> None:
    found = compared([many(0, 0, 0), many(60_000, 0, 100_000), many(0, 0, 0)])
    assert found is not None and not found.clock_corrected
