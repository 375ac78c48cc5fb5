"""When a run saves, by what its steps and saves took; no clock is waited for."""

from __future__ import annotations

import time

import pytest

from nearpeak.train.cadence import Hazard
from nearpeak.train.rhythm import Rhythm
from nearpeak.train.saver import SaveTimes


def rhythm(every: int | str = "auto", *, step_s: float = 2.0) -> Rhythm:
    """One that has seen its warm-up and a usual step."""
    made = Rhythm(every, Hazard.constant(1 / 24), time.monotonic())  # type: ignore[arg-type]
    made.note_step(30.0)
    made.note_step(step_s)
    return made


def first_due(made: Rhythm, begin: int) -> int:
    return next(step for step in range(begin, 10_000) if made.is_due(step))


def test_the_first_save_comes_after_a_minute_and_measures() -> None:
    made = rhythm()
    assert first_due(made, 1) == 31
    assert "measures what it costs" in made.reasons[0].because


def test_what_a_save_took_decides_on_the_next_and_is_told() -> None:
    made = rhythm()
    assert not made.is_due(1)
    made.note_save(31, SaveTimes())
    made.note_save(32, SaveTimes(stall_ms=100.0, durable_ms=5000.0))
    assert first_due(made, 32) == 32 + 65  # √(2 · 0.1 s · 24 h) = 131 s, in steps of 2 s
    assert "A loss takes" in made.reasons[-1].because
    assert made.reasons[-1].evidence["stall_s"] == pytest.approx(0.1)


def test_steps_beside_a_save_that_take_longer_are_its_cost() -> None:
    made = rhythm()
    made.note_save(31, SaveTimes())
    for _ in range(3):
        made.note_step(2.5, saving=True)
    made.note_step(2.0)
    made.note_save(36, SaveTimes(stall_ms=100.0, waited_for_previous_ms=400.0, durable_ms=5000.0))
    made.is_due(37)
    assert made.reasons[-1].evidence["stall_s"] == pytest.approx(0.1 + 0.4 + 1.5)
    assert made.reasons[-1].evidence["interval_s"] == pytest.approx((2 * 2.0 * 86400) ** 0.5, abs=2.0), "of 2 s steps"


def test_a_set_number_of_steps_is_kept_and_its_price_told() -> None:
    made = rhythm(5)
    assert [step for step in range(1, 16) if made.is_due(step)] == [5, 10, 15]
    made.note_save(5, SaveTimes(stall_ms=100.0, durable_ms=900.0))
    assert [step for step in range(6, 16) if made.is_due(step)] == [10, 15]
    assert [reason.choice for reason in made.reasons] == ["checkpoint_every=5"] * 2
    assert made.reasons[-1].because.startswith("as set: about every 10 s")
