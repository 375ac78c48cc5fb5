"""Which ranges are steps."""

from __future__ import annotations

import numpy as np
import pytest

from nearpeak.trace.step_ranges import Ranges, steps_from_phases, steps_from_ranges


def ranges(*rows: tuple[str, int, int], numbers: tuple[int, ...] | None = None) -> Ranges:
    names = tuple(dict.fromkeys(name for name, _, _ in rows))
    return Ranges(
        start_ns=np.array([start for _, start, _ in rows], dtype=np.int64),
        end_ns=np.array([end for _, _, end in rows], dtype=np.int64),
        thread=np.zeros(len(rows), dtype=np.int64),
        name=np.array([names.index(name) for name, _, _ in rows], dtype=np.int64),
        names=names,
        number=np.array(numbers, dtype=np.int64) if numbers else None,
    )


@pytest.mark.parametrize(
    "name",
    [
        "iteration {}",
        "step_{}",
        "Step {}",
        "train_step",
        "ProfilerStep#{}",
        "iter: {}",
        "batch {}",
        "training_step",
        "train",
    ],
)
def test_names_that_look_like_steps(name: str) -> None:
    steps = steps_from_ranges(ranges(*((name.format(n), n * 100, n * 100 + 80) for n in range(3))))
    assert steps is not None
    assert steps.start_ns.tolist() == [0, 100, 200]
    assert steps.end_ns.tolist() == [100, 200, 280]


@pytest.mark.parametrize("name", ["optimizer.step", "Optimizer.step#SGD.step", "forward", "aten::step", "stepwise"])
def test_names_that_do_not(name: str) -> None:
    assert steps_from_ranges(ranges(*((name, n * 100, n * 100 + 80) for n in range(3)))) is None


def test_numbers_of_the_names_are_kept_where_they_ascend() -> None:
    steps = steps_from_ranges(ranges(("step 7", 0, 5), ("step 9", 10, 15), ("step 12", 20, 25)))
    assert steps is not None and steps.number.tolist() == [7, 9, 12]
    steps = steps_from_ranges(ranges(("step 7", 0, 5), ("step 7", 10, 15)))
    assert steps is not None and steps.number.tolist() == [0, 1]


def test_a_pause_between_two_steps_belongs_to_neither() -> None:
    begins = [0, 100, 200, 5000, 5100]
    steps = steps_from_ranges(ranges(*((f"step {n}", at, at + 90) for n, at in enumerate(begins))))
    assert steps is not None
    assert steps.end_ns.tolist() == [100, 200, 290, 5100, 5190]


def test_steps_do_not_overlap_and_the_better_name_wins() -> None:
    inner = [("batch 1", 10, 20), ("batch 2", 30, 40), ("batch 3", 110, 120)]
    steps = steps_from_ranges(ranges(("step 1", 0, 100), ("step 2", 100, 200), ("step 2b", 150, 190), *inner))
    assert steps is not None and steps.start_ns.tolist() == [0, 100]


def test_a_single_range_or_none_is_no_row_of_steps() -> None:
    assert steps_from_ranges(ranges(("step 1", 0, 100))) is None
    assert steps_from_ranges(ranges()) is None


def test_ranges_with_a_number_of_their_own_need_no_name() -> None:
    steps = steps_from_ranges(ranges(("fit", 0, 10), ("fit", 10, 20), numbers=(4, 5)))
    assert steps is not None and steps.number.tolist() == [4, 5]


def test_without_steps_a_phase_that_recurs_begins_them() -> None:
    rows = [
        (name, n * 100 + at, n * 100 + at + 20) for n in range(4) for name, at in (("forward", 10), ("backward", 40))
    ]
    micro = [("forward", n * 100 + 70, n * 100 + 80) for n in range(4)]
    steps = steps_from_phases(ranges(*rows))
    assert steps is not None and steps.inferred is not None and "`forward`" in steps.inferred
    assert steps.start_ns.tolist() == [10, 110, 210, 310]
    assert steps.end_ns.tolist() == [110, 210, 310, 330]
    opened = [("optimizer.zero_grad", n * 100, n * 100 + 5) for n in range(4)]
    steps = steps_from_phases(ranges(*sorted([*rows, *micro, *opened], key=lambda each: each[1])))
    assert steps is not None and steps.start_ns.tolist() == [0, 100, 200, 300]
    assert steps_from_phases(ranges(("backward", 0, 5), ("aten::add", 5, 9))) is None
    assert steps_from_phases(ranges()) is None


def test_times_that_cannot_be_true_make_no_step() -> None:
    assert steps_from_ranges(ranges(("step 1", 2**62, 2**62 + 5), ("step 2", 0, 2**61))) is None
