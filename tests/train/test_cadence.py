"""The interval is the one of least loss, and says what it rests on."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import SettingError
from nearpeak.train.cadence import GCP_PREEMPTIBLE, Cadence, Hazard, SaveCost

COST = SaveCost(stall_s=2.0, persist_s=5.0, restart_s=60.0)


@given(cost_s=st.floats(1e-3, 1e3), per_hour=st.floats(1e-4, 10), age_h=st.floats(0, 100))
def test_a_constant_hazard_gives_young_and_daly(cost_s: float, per_hour: float, age_h: float) -> None:
    expected_s = math.sqrt(2 * cost_s / (per_hour / 3600))
    assert Hazard.constant(per_hour).interval_s(cost_s, age_h) == pytest.approx(expected_s)


@given(
    cost_s=st.floats(0.1, 1e4),
    rates=st.lists(st.floats(0.001, 2), min_size=1, max_size=4),
    age_h=st.floats(0, 6),
)
def test_the_equation_holds_across_changes_of_hazard(cost_s: float, rates: list[float], age_h: float) -> None:
    """∫ h(a + t) t dt up to the interval is the cost: summed here piece by piece, between the changes of h."""
    hazard = Hazard(tuple((float(age), rate) for age, rate in enumerate(rates)))
    interval_h = hazard.interval_s(cost_s, age_h) / 3600
    changes = [age - age_h for age in range(len(rates)) if 0 < age - age_h < interval_h]
    pieces = pairwise([0.0, *changes, interval_h])
    lost_h = sum(hazard.per_hour(age_h + (a + b) / 2) * (b * b - a * a) / 2 for a, b in pieces)
    assert lost_h * 3600 == pytest.approx(cost_s, rel=1e-6)


def test_no_other_interval_loses_less() -> None:
    """Cost per second of saving every T and losing T/2 on average, at the chosen T and beside it."""

    def overhead(interval_s: float) -> float:
        return 2.0 / interval_s + 0.5 / 3600 * interval_s / 2

    best_s = Hazard.constant(0.5).interval_s(2.0, 0)
    assert all(overhead(best_s) < overhead(best_s * factor) for factor in (0.5, 0.9, 1.1, 2.0))


def test_young_machines_are_saved_more_often() -> None:
    cadence = Cadence(hazard=GCP_PREEMPTIBLE)
    young, old = (cadence.next_save(step_s=0.5, cost=COST, age_h=age) for age in (1.0, 10.0))
    assert young.steps == 550
    assert old.steps == 1697
    assert young.reason.choice == "checkpoint_every=550"
    assert "0.19 losses an hour" in young.reason.because
    assert young.reason.evidence["lost_work_s"] == pytest.approx(550 * 0.5 / 2 + 5)


def test_a_rising_hazard_is_seen_coming() -> None:
    """Machines that are taken away after 24 hours: the interval that would reach over that is shortened."""
    hazard = Hazard(((0.0, 0.001), (24.0, 5.0)))
    assert hazard.interval_s(30.0, 23.0) < 1.2 * 3600
    assert hazard.interval_s(30.0, 0.0) == pytest.approx(math.sqrt(2 * 30 / (0.001 / 3600)))


def test_never_more_often_than_a_save_takes_to_persist() -> None:
    slow = SaveCost(stall_s=0.01, persist_s=90.0, restart_s=0.0)
    interval = Cadence(hazard=Hazard.constant(2.0)).next_save(step_s=7.0, cost=slow)
    assert interval.steps * 7.0 >= 90.0
    assert interval.steps == 13
    assert "no more often than a save takes to reach the disk" in interval.reason.because


def test_never_more_seldom_than_allowed() -> None:
    cadence = Cadence(hazard=Hazard.constant(0.0), longest_s=600)
    interval = cadence.next_save(step_s=2.0, cost=COST)
    assert interval.steps == 300
    assert "losses are so rare" in interval.reason.because


def test_long_steps_are_saved_one_by_one() -> None:
    assert Cadence().next_save(step_s=5000.0, cost=COST).steps == 1


def test_steps_as_set_still_say_what_they_cost() -> None:
    interval = Cadence(every_n_steps=10).next_save(step_s=1.0, cost=COST)
    assert interval.steps == 10
    assert interval.reason.because.startswith("as set: about every 10 s at 2 s a save")
    assert interval.reason.evidence["overhead_share"] == pytest.approx(0.2 + (10 / 2 + 65) / 24 / 3600)
    assert Cadence(every_n_steps=10).next_save(step_s=1.0).steps == 10


def test_the_first_save_measures() -> None:
    interval = Cadence().next_save(step_s=0.5)
    assert interval.steps == 120
    assert "nothing was saved yet" in interval.reason.because


def test_free_saves_are_no_division_by_zero() -> None:
    assert Cadence().next_save(step_s=1.0, cost=SaveCost(0.0, 0.0, 0.0)).steps == 1


@pytest.mark.parametrize(
    "rates", [(), ((1.0, 0.1),), ((0.0, 0.1), (0.0, 0.2)), ((0.0, -1.0),), ((0.0, math.inf),), ((0.0, math.nan),)]
)
def test_hazards_that_are_none(rates: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(SettingError, match="Hazard"):
        Hazard(rates)


def test_settings_that_break_rules() -> None:
    with pytest.raises(SettingError, match="every_n_steps=0"):
        Cadence(every_n_steps=0)
    with pytest.raises(SettingError, match="longest_s=0"):
        Cadence(longest_s=0)
    with pytest.raises(SettingError, match="stall_s=-1"):
        SaveCost(-1.0, 0.0, 0.0)
    with pytest.raises(SettingError, match="step_s=0"):
        Cadence().next_save(step_s=0)
