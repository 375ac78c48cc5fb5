from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, combinations

import pytest
from synthetic import KIB, Op, step_of

from nearpeak.errors import SettingError, UnsupportedError
from nearpeak.planner import recompute
from nearpeak.planner.graph import StepGraph, step_graph
from nearpeak.planner.options import options_of
from nearpeak.planner.recompute import Recomputer
from nearpeak.planner.search import Search
from nearpeak.predict.memory import peaks
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

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


def test_of_several_micro_batches_the_first_tells_the_activations() -> None:
    once = step_of(MLP, 3)
    first, operators = len(once.allocations), len(once.operators)
    again = tuple(replace(each, operator=each.operator + operators) for each in once.allocations[2:])

    def moved(event: int) -> int:
        return event + (first - 2) * (1 if event > 0 else -1)

    later = tuple(
        Segment(segment.phase, 0, tuple(map(moved, segment.events))) for segment in once.segments if segment.step == 0
    )[2:]
    twice = replace(
        once,
        allocations=once.allocations + again,
        operators=once.operators * 2,
        segments=once.segments + later,
    )
    assert step_graph(twice).activation_bytes == step_graph(once).activation_bytes


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


@pytest.fixture(scope="module")
def tiny() -> Recomputer:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "num_hidden_layers": 4}
    return Recomputer(
        CaptureRequest(
            model="bert-base",
            batch=16,
            sequence=64,
            precision="bf16",
            task="sequence-classification",
            optimizer="sgd",
            overrides={**sizes, "vocab_size": 99},
        )
    )


def test_less_memory_for_no_arithmetic_with_a_verified_peak(tiny: Recomputer) -> None:
    choice = tiny.for_share(0.7)
    trace = tiny.trace_of(choice.blocks)
    assert choice.met
    assert choice.peak_bytes == peaks(trace).peak_allocated <= (choice.wanted_peak_bytes or 0)
    assert choice.peak_bytes <= choice.plain_peak_bytes - round(0.3 * choice.activation_bytes)
    assert choice.extra_flops == trace.flops - tiny.plain.flops == 0
    assert sorted(path for block in choice.blocks for path in block.modules) == sorted(
        f"bert.encoder.layer.{index}" for index in range(4)
    )
    assert choice.reason.choice == "recompute=chosen" and "MiB instead of" in choice.reason.because


def captured_as_promised(plain: StepTrace, beside_bytes: int = 0) -> Callable[..., StepTrace]:
    """Captures that take away what a plan does not keep, and hold something beside."""

    def captured(request: CaptureRequest, **_: object) -> StepTrace:
        saved = again = 0
        for block in request.prepare_arguments["blocks"]:
            letters = [each.rpartition(":")[2] for each in block["operators"]]
            dropped = [op for op, letter in zip(MLP, letters, strict=True) if letter != "k"]
            saved += len(block["modules"]) * sum(op.kib for op in dropped) * KIB
            again += len(block["modules"]) * sum(op.flops for op in dropped)
        held = Allocation(peaks(plain).peak_allocated - saved + beside_bytes, "parameters", "", "build", -1)
        extra = Operator("mm", "layers.0", "backward", again, 0, (), (), ())
        return StepTrace(
            allocations=(held,),
            operators=(*plain.operators, extra),
            segments=(Segment("build", 0, (1,)),),
            parameters=1,
            trainable_parameters=1,
        )

    return captured


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Recomputer:
    """A step whose captures need 6 KiB more than the search takes them to need."""
    plain = step_of(MLP, 4)
    monkeypatch.setattr(recompute, "capture", captured_as_promised(plain, 6 * KIB))
    return Recomputer(CaptureRequest(model="made-up"), trace=plain)


def test_a_search_that_is_wrong_is_corrected(made_up: Recomputer) -> None:
    wanted = made_up.plain_peak_bytes - 20 * KIB
    choice = made_up.for_peak(wanted)
    assert choice.met and choice.peak_bytes <= wanted


def test_what_cannot_be_met_is_said_with_the_least_that_can(made_up: Recomputer) -> None:
    choice = made_up.for_peak(1)
    assert not choice.met
    assert choice.peak_bytes < made_up.for_share(0.7).peak_bytes
    assert "No recomputation keeps within" in choice.reason.because


def test_the_least_peak_is_bought_no_dearer_than_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something else peaks, such as the optimizer, recomputing everything would be for nothing."""
    plain = step_of(MLP, 4)
    promised = captured_as_promised(plain)
    floor = peaks(plain).peak_allocated - 16 * KIB

    def captured(request: CaptureRequest, **given: object) -> StepTrace:
        trace = promised(request, **given)
        held = trace.allocations[0]
        return replace(trace, allocations=(replace(held, bytes=max(held.bytes, floor)),))

    monkeypatch.setattr(recompute, "capture", captured)
    choice = Recomputer(CaptureRequest(model="made-up"), trace=plain).for_share(0.5)
    assert not choice.met and choice.peak_bytes == floor
    assert choice.extra_flops == 0


def test_a_card_is_met_by_what_its_forecast_says(made_up: Recomputer) -> None:
    usable = made_up.plain_peak_bytes - 10 * KIB
    choice = made_up.for_card(lambda trace: peaks(trace).peak_allocated + 4 * KIB - usable)
    assert choice.met and choice.peak_bytes + 4 * KIB <= usable
    assert choice.wanted_peak_bytes is None


def test_what_fits_anyway_is_left_alone(made_up: Recomputer) -> None:
    choice = made_up.for_card(lambda trace: -1)
    assert choice.met and not choice.blocks and choice.extra_flops == 0
    assert choice.reason.choice == "recompute=none"


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_shares_are_shares(made_up: Recomputer, share: float) -> None:
    with pytest.raises(SettingError, match="memory budget"):
        made_up.for_share(share)


def test_recomputation_is_chosen_once() -> None:
    with pytest.raises(SettingError, match="without any"):
        Recomputer(CaptureRequest(model="bert-base", recompute=True))


def test_models_without_blocks_are_refused() -> None:
    plain = step_of(MLP, 2)
    renamed = replace(plain, operators=tuple(replace(operator, module="body") for operator in plain.operators))
    with pytest.raises(UnsupportedError, match="no numbered modules"):
        Recomputer(CaptureRequest(model="body"), trace=renamed)


def test_steps_without_arithmetic_are_refused() -> None:
    plain = step_of([Op("gelu", (-1,), 8), Op("add.Tensor", (0,), 2)], 2)
    plain = replace(plain, operators=tuple(replace(operator, flops=0) for operator in plain.operators))
    with pytest.raises(UnsupportedError, match="no arithmetic to weigh"):
        Recomputer(CaptureRequest(model="made-up"), trace=plain)
