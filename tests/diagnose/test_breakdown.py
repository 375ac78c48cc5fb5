"""The parts of a step sum to it, or there is no breakdown."""

from __future__ import annotations

import pytest

from nearpeak.diagnose.breakdown import IDLE_CAUSES, Breakdown, total
from nearpeak.errors import SettingError

STEP = Breakdown(window_ns=100, compute_ns=50, communication_ns=10, copy_ns=5, idle_ns={"input": 30, "other": 5})


def test_shares_are_of_the_window() -> None:
    assert STEP.share("compute") == 0.5
    assert STEP.share("idle") == 0.35
    assert STEP.share("input") == 0.3
    assert STEP.share("sync") == 0


@pytest.mark.parametrize("change", [{"compute_ns": 51}, {"copy_ns": -5}, {"idle_ns": {"magic": 35}}])
def test_what_does_not_add_up_is_refused(change: dict) -> None:
    parts = {"window_ns": 100, "compute_ns": 50, "communication_ns": 10, "copy_ns": 5, "idle_ns": {"other": 35}}
    assert Breakdown(**parts).window_ns == 100
    with pytest.raises(SettingError):
        Breakdown(**{**parts, **change})


def test_steps_add_up() -> None:
    both = total([STEP, Breakdown(window_ns=10, compute_ns=0, communication_ns=0, copy_ns=0, idle_ns={"input": 10})])
    assert both.window_ns == 110 and both.idle_ns["input"] == 40


def test_the_form_of_the_json() -> None:
    percentages = STEP.as_percentages()
    assert set(percentages) == {"compute", "communication", "copy", "idle"}
    assert list(percentages["idle"]) == list(IDLE_CAUSES)
    busy = sum(share for cause, share in percentages.items() if cause != "idle")
    assert busy + sum(percentages["idle"].values()) == pytest.approx(100)
