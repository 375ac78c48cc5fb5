"""The partition is the cheapest there is, within memory; shares are complete and even."""

from __future__ import annotations

import math
import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.train.cost import CostModel
from nearpeak.train.windows import fixed, pack, padding_share, partition, share

lengths_lists = st.lists(st.integers(1, 60), min_size=1, max_size=30)
limits = st.one_of(st.none(), st.integers(1, 8))
costs = st.builds(
    CostModel, st.sampled_from([0.0, 1.0, 20.0]), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 0.01])
)


def total_ms(lengths: list[int], groups: list[list[int]], cost: CostModel) -> float:
    return sum(cost.micro_batch_ms(len(g), max(lengths[i] for i in g)) for g in groups)


def cheapest_ms(lengths: list[int], cost: CostModel, max_samples: int | None, max_tokens: int | None) -> float:
    """Every contiguous partition of the sorted lengths, the slow and obvious way."""
    ordered = sorted(lengths)
    best = [0.0] + [math.inf] * len(ordered)
    for end in range(1, len(ordered) + 1):
        for start in range(end):
            rows, width = end - start, ordered[end - 1]
            if rows > 1 and (rows > (max_samples or rows) or rows * width > (max_tokens or rows * width)):
                continue
            best[end] = min(best[end], best[start] + cost.micro_batch_ms(rows, width))
    return best[-1]


@settings(max_examples=300)
@given(lengths=lengths_lists, cost=costs, max_samples=limits, max_tokens=st.one_of(st.none(), st.integers(1, 300)))
def test_partition_is_the_cheapest(lengths, cost, max_samples, max_tokens):
    groups = partition(lengths, cost, max_samples=max_samples, max_tokens=max_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert math.isclose(
        total_ms(lengths, groups, cost), cheapest_ms(lengths, cost, max_samples, max_tokens), abs_tol=1e-9
    )
    for group in groups:
        if len(group) > 1:
            assert len(group) <= (max_samples or len(group))
            assert len(group) * max(lengths[i] for i in group) <= (max_tokens or math.inf)


@given(lengths=lengths_lists, max_tokens=st.one_of(st.none(), st.integers(1, 200)))
def test_packed_rows_hold_everything_within_memory(lengths, max_tokens):
    rows = pack(lengths, max_tokens=max_tokens)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or max_tokens is None or sum(lengths[i] for i in row) <= max_tokens


@given(lengths=st.one_of(st.none(), lengths_lists), count=st.integers(0, 30), ranks=st.integers(1, 4))
def test_shares_are_complete_and_disjoint(lengths, count, ranks):
    count = count if lengths is None else len(lengths)
    shares = share(lengths, count, ranks, CostModel())
    assert len(shares) == ranks
    assert sorted(i for members in shares for i in members) == list(range(count))


def test_shares_balance_cost_not_counts():
    lengths = [512] + [16] * 32
    cost = CostModel(launch_ms=0, token_ms=1, square_ms=0)
    loads = [sum(lengths[i] for i in members) for members in share(lengths, len(lengths), 2, cost)]
    assert max(loads) == 512


def test_fixed_micro_batches_keep_the_order():
    assert fixed(5, 2) == [[0, 1], [2, 3], [4]]


def test_long_launches_make_few_micro_batches():
    lengths = [10, 11, 60, 61]
    assert len(partition(lengths, CostModel(1e6, 1, 0))) == 1
    assert len(partition(lengths, CostModel(0, 1, 0))) == 4


def test_padding_share():
    assert padding_share([2, 4], [[0, 1]]) == 0.25
    assert padding_share([2, 4], [[0], [1]]) == 0


def test_planning_is_fast():
    draw = random.Random(0)
    lengths = [max(3, min(512, round(draw.lognormvariate(3.6, 0.9)))) for _ in range(4096)]
    # CPU time of the best of a few: the limits are 1 ms and 50 ms.
    assert best_ms(lambda: partition(lengths[:32], CostModel())) < 1
    assert best_ms(lambda: partition(lengths, CostModel(), max_tokens=8192)) < 50


def best_ms(run) -> float:
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append((time.process_time() - start) * 1e3)
    return min(times)
