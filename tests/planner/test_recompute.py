from __future__ import annotations

import random
from itertools import chain, combinations

import pytest
from synthetic import KIB, Op, step_of

from nearpeak.errors import SettingError, UnsupportedError
from nearpeak.plan import BlockRecompute
from nearpeak.planner import recompute
from nearpeak.planner.graph import StepGraph, step_graph
from nearpeak.planner.options import options_of
from nearpeak.planner.recompute import Recomputer
from nearpeak.planner.search import Search
from nearpeak.predict.memory import peaks
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace

MLP = [
    Op("mm", (-1,), 8, flops=800),
    Op("gelu", (0,), 8),
    Op("mm", (1,), 2, flops=800),
    Op("add.Tensor", (-1, 2), 2),
]


# -- graph -------------------------------------------------------------------------------------------------------------


def test_the_graph_knows_blocks_and_what_they_make() -> None:
    graph = step_graph(step_of(MLP, 3))
    assert [block.path for block in graph.blocks] == ["layers.0", "layers.1", "layers.2"]
    assert graph.activation_bytes == 3 * 20 * KIB
    first = [graph.values[number] for number in graph.blocks[0].values]
    assert [value.bytes // KIB for value in first] == [8, 8, 2, 2]
    assert [value.flops for value in first] == [800, 0, 800, 0]
    assert first[1].sources == (first[0].number,)
    assert all(value.needed and value.again for value in first)


def test_what_is_changed_in_place_never_runs_again() -> None:
    trace = step_of([Op("mm", (-1,), 8), Op("batch_norm", (0,), 8), Op("mul", (1,), 8), Op("empty_like", (2,), 8)], 1)
    graph = step_graph(trace)
    assert [graph.values[number].again for number in graph.blocks[0].values] == [True, False, True, False]


# -- options -----------------------------------------------------------------------------------------------------------


def cost_of_keeping(graph: StepGraph, kept: frozenset[int], boundary: frozenset[int]) -> int | None:
    """Flops of what has to run again, by following operands; None if something can not be made."""
    values = {number: graph.values[number] for block in graph.blocks for number in block.values}
    waiting = [value.number for value in values.values() if value.needed]
    again: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number in kept or number in boundary or number not in values or values[number].operator in again:
            continue
        if not values[number].again:
            return None
        again.add(values[number].operator)
        waiting += values[number].sources
    return sum(graph.trace.operators[operator].flops for operator in again)


def drawn_block(draw: random.Random) -> list[Op]:
    ops: list[Op] = []
    for place in range(draw.randint(3, 7)):
        reads = tuple({draw.randint(-1, place - 1) for _ in range(draw.randint(1, 2))})
        dear = draw.random() < 0.4
        name = "batch_norm" if draw.random() < 0.1 else "op"
        ops.append(Op(name, reads, draw.randint(1, 9), 100 * draw.randint(1, 5) if dear else 0, draw.random() < 0.7))
    return ops


def test_no_choice_beats_those_that_are_offered() -> None:
    """Against every set of values that could be kept."""
    draw = random.Random(3)
    for _ in range(40):
        graph = step_graph(step_of(drawn_block(draw), 1))
        numbers = [number for block in graph.blocks for number in block.values]
        if not graph.blocks:
            continue
        offered = options_of(graph, graph.blocks, frozenset())
        subsets = chain.from_iterable(combinations(numbers, size) for size in range(len(numbers) + 1))
        for subset in map(frozenset, subsets):
            flops = cost_of_keeping(graph, subset, frozenset())
            if flops is None:
                continue
            size = sum(graph.values[number].bytes for number in subset)
            # A byte of traffic weighs a little, so that of equals the one with less work is taken: nothing moves here.
            assert any(option.kept_bytes <= size and option.flops <= flops for option in offered)
        for option in offered:
            assert cost_of_keeping(graph, option.kept, frozenset()) == option.flops


# -- search ------------------------------------------------------------------------------------------------------------


def test_the_search_spends_no_more_than_the_limit_asks() -> None:
    search = Search(step_graph(step_of(MLP, 4)))
    peak = max(search.graph.live)
    costs = []
    for limit in range(peak, search.least_limit, -2 * KIB):
        chosen = search.cheapest(limit)
        assert chosen is not None
        costs.append(sum(option.flops for option in chosen.options))
    assert costs[0] == 0
    assert costs == sorted(costs)
    assert costs[-1] > 0
    assert search.cheapest(search.least_limit - 4 * KIB) is None


def test_a_head_that_needs_more_than_the_limit_is_no_matter_of_blocks() -> None:
    trace = step_of(MLP, 3, head_kib=500)
    search = Search(step_graph(trace))
    assert search.cheapest(490 * KIB) is None
    assert search.cheapest(max(search.graph.live)) is not None


def test_what_is_free_is_taken_before_what_costs() -> None:
    """gelu runs again for nothing: 24 of 60 KiB need no product."""
    search = Search(step_graph(step_of(MLP, 3)))
    chosen = search.cheapest(max(search.graph.live) - 20 * KIB)
    assert chosen is not None
    assert sum(option.flops for option in chosen.options) == 0


# -- verified ----------------------------------------------------------------------------------------------------------

TINY = CaptureRequest(
    model="bert-base",
    batch=16,
    sequence=64,
    precision="bf16",
    task="sequence-classification",
    optimizer="sgd",
    overrides={
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "num_hidden_layers": 5,
        "vocab_size": 99,
    },
)


@pytest.fixture(scope="module")
def tiny() -> Recomputer:
    pytest.importorskip("transformers")
    return Recomputer(TINY)


def test_half_the_activations_cost_little_and_the_peak_is_verified(tiny: Recomputer) -> None:
    choice = tiny.for_share(0.5)
    trace = tiny.trace_of(choice.blocks)
    assert choice.met
    assert choice.peak_bytes == peaks(trace).peak_allocated <= (choice.wanted_peak_bytes or 0)
    assert choice.peak_bytes <= choice.plain_peak_bytes - choice.activation_bytes // 2
    assert choice.extra_flops == trace.flops - tiny.plain.flops
    assert choice.extra_share < 0.06  # of few layers the last weighs more
    assert sorted(path for block in choice.blocks for path in block.modules) == sorted(
        f"bert.encoder.layer.{index}" for index in range(5)
    )
    assert choice.reason.choice == "recompute=chosen" and "MiB instead of" in choice.reason.because


def test_what_cannot_be_met_is_said_with_the_least_that_can(tiny: Recomputer) -> None:
    choice = tiny.for_peak(1)
    assert not choice.met
    assert choice.peak_bytes < tiny.for_share(0.5).peak_bytes
    assert "No recomputation keeps within" in choice.reason.because


def test_what_fits_anyway_is_left_alone(tiny: Recomputer) -> None:
    choice = tiny.for_card(lambda trace: -1)
    assert choice.met and not choice.blocks and choice.extra_flops == 0
    assert choice.reason.choice == "recompute=none"


def test_a_card_is_met_by_what_its_forecast_says(tiny: Recomputer) -> None:
    usable = tiny.plain_peak_bytes - tiny.activation_bytes // 3
    choice = tiny.for_card(lambda trace: peaks(trace).peak_allocated + (1 << 20) - usable)
    assert choice.met and choice.peak_bytes + (1 << 20) <= usable


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_shares_are_shares(tiny: Recomputer, share: float) -> None:
    with pytest.raises(SettingError, match="memory budget"):
        tiny.for_share(share)


def test_recomputation_is_chosen_once() -> None:
    with pytest.raises(SettingError, match="without any"):
        Recomputer(CaptureRequest(model="bert-base", recompute=True))


def test_models_without_blocks_are_refused() -> None:
    trace = step_of(MLP, 2)
    renamed = [
        type(operator)(**{**{f: getattr(operator, f) for f in operator.__slots__}, "module": "body"})
        for operator in trace.operators
    ]
    plain = StepTrace(
        allocations=trace.allocations, operators=tuple(renamed), segments=trace.segments, parameters=1,
        trainable_parameters=1,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="no numbered modules"):
        Recomputer(CaptureRequest(model="body"), trace=plain)


def test_a_search_that_is_wrong_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that needs 6 KiB more than the search takes a choice to need."""
    plain = step_of(MLP, 4)

    def captured(request: CaptureRequest, **_: object) -> StepTrace:
        blocks = [BlockRecompute(modules=tuple(e["modules"]), operators=tuple(e["operators"]))
                  for e in request.prepare_arguments["blocks"]]  # fmt: skip
        saved = 0
        for block in blocks:
            letters = [each.rpartition(":")[2] for each in block.operators]
            freed = sum(op.kib for op, letter in zip(MLP, letters, strict=True) if letter != "k")
            saved += freed * len(block.modules)
        size = peaks(plain).peak_allocated - saved * KIB + 6 * KIB
        only = type(plain.allocations[0])(size, "parameters", "", "build", -1)
        return StepTrace(
            allocations=(only,), operators=plain.operators, segments=(type(plain.segments[0])("build", 0, (1,)),),
            parameters=1, trainable_parameters=1,
        )  # fmt: skip

    monkeypatch.setattr(recompute, "capture", captured)
    recomputer = Recomputer(CaptureRequest(model="made-up"), trace=plain)
    wanted = recomputer.plain_peak_bytes - 20 * KIB
    choice = recomputer.for_peak(wanted)
    assert choice.met and choice.peak_bytes <= wanted
