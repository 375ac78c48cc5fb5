"""Comparing runs: a difference that is there is seen, one that is not is not, however steps hang together."""

from __future__ import annotations

import numpy as np
import pytest

from nearpeak.diagnose.compare_runs import Run, block_length, compare


def run(wall_ms: np.ndarray, samples: float | None = 32.0, **setup: object) -> Run:
    counted = None if samples is None else np.full(len(wall_ms), samples)
    phases = {"input": 0.4 * wall_ms, "forward": 0.2 * wall_ms, "backward": 0.4 * wall_ms}
    return Run("run", wall_ms, phases, counted, dict(setup))


def wandering(random: np.random.Generator, count: int, share: float, mean_ms: float = 100.0) -> np.ndarray:
    """Steps each of which keeps `share` of the last one's deviation."""
    noise, values, last = random.standard_normal(count), np.empty(count), 0.0
    for i in range(count):
        last = share * last + np.sqrt(1 - share**2) * noise[i]
        values[i] = last
    return mean_ms * np.exp(0.1 * values)


def test_a_real_difference_is_told_and_its_interval_holds_it() -> None:
    random = np.random.default_rng(1)
    seen = compare(run(wandering(random, 400, 0.3)), run(wandering(random, 300, 0.3, mean_ms=80.0)))
    assert seen.verdict == "faster"
    assert seen.ratio is not None
    assert seen.ratio.low < 0.8 < seen.ratio.high < 0.85
    assert (seen.unit, seen.steps) == ("step", (400, 300))


KINDS = {
    "independent": lambda random, count: 100 * random.lognormal(0, 0.2, count),
    "wandering": lambda random, count: wandering(random, count, 0.9),
    "evaluating": lambda random, count: 100 + random.normal(0, 3, count) + 900 * (np.arange(count) % 50 == 49),
    "few": lambda random, count: 100 * random.lognormal(0, 0.1, 25),
}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_runs_are_hardly_ever_told_apart(kind: str) -> None:
    random = np.random.default_rng(2)
    told = 0
    for _ in range(100):
        verdict = compare(run(KINDS[kind](random, 300)), run(KINDS[kind](random, 300))).verdict
        told += verdict in ("faster", "slower")
    assert told <= 10, f"{told} of 100; 5 are expected"


def test_phases_make_up_the_whole_difference_and_only_the_changed_one_is_named() -> None:
    random = np.random.default_rng(3)
    one, other = (100 + random.normal(0, 2, 200) for _ in range(2))
    first = Run("a", one + 50, {"input": np.full(200, 50.0), "forward": one}, None, {})
    second = Run("b", other + 10, {"input": np.full(200, 10.0), "forward": other}, None, {})
    seen = compare(first, second)
    assert [(each.phase, each.is_real) for each in seen.phases] == [("input", True), ("forward", False)]
    assert sum(each.change_ms.likely for each in seen.phases) == pytest.approx(seen.second_ms - seen.first_ms)


def test_steps_of_another_size_are_compared_by_sample() -> None:
    random = np.random.default_rng(4)
    first, second = run(100 * random.lognormal(0, 0.05, 200), 32), run(200 * random.lognormal(0, 0.05, 200), 64)
    seen = compare(first, second)
    assert (seen.unit, seen.verdict) == ("sample", "no difference can be told")
    assert seen.first_ms == pytest.approx(100 / 32, rel=0.02)


def test_few_steps_tell_nothing() -> None:
    seen = compare(run(np.array([100.0, 101.0, 99.0])), run(np.array([50.0, 51.0, 49.0])))
    assert (seen.verdict, seen.ratio) == ("too few steps", None)
    assert compare(run(np.empty(0)), run(np.empty(0))).verdict == "too few steps"


def test_what_differs_in_the_set_up_is_listed() -> None:
    steps = np.full(50, 100.0)
    seen = compare(run(steps, loader_workers=0, torch="2.13"), run(steps, loader_workers=4, torch="2.13"))
    assert seen.setup == (("loader_workers", 0, 4),)
    assert seen.verdict == "no difference can be told"


def test_blocks_are_as_long_as_steps_hang_together() -> None:
    random = np.random.default_rng(5)
    assert block_length(random.standard_normal(2000)) <= 4
    assert 10 <= block_length(np.log(wandering(random, 2000, 0.9))) <= 120
    assert block_length(np.ones(100)) == 1
