"""How often to save: often enough that a lost machine costs little, seldom enough that saving costs little.

A save costs C seconds of training. A machine of age a is lost at a rate of h(a) per hour, and takes along what was
trained since the last save. Both together are least when the next save comes after T with

    ∫₀ᵀ h(a + t) · t dt  =  C

which for a constant h is Young's and Daly's T = √(2C/h). Lifetimes of preemptible machines are not exponential: the
first hours are the dangerous ones, so h is a table by age. All of this is arithmetic; it reads no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from nearpeak.errors import SettingError
from nearpeak.reason import Reason

__all__ = ["GCP_PREEMPTIBLE", "ONCE_A_DAY", "Cadence", "Hazard", "Interval", "SaveCost"]

HOUR_S = 3600.0
UNMEASURED_S = 60.0
"""When nothing was measured yet, the first save comes after this."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """How likely a machine is lost, per hour, by its age."""

    rates: tuple[tuple[float, float], ...]
    """(from this age in hours, losses per hour), by rising age; the first starts at 0."""

    def __post_init__(self) -> None:
        ages = [age for age, _ in self.rates]
        if not ages or ages[0] != 0 or ages != sorted(set(ages)):
            raise SettingError(f"Hazard(rates={self.rates!r}): ages must rise from 0, as in ((0, 0.19), (3, 0.02)).")
        if any(not 0 <= rate < math.inf for _, rate in self.rates):
            raise SettingError(f"Hazard(rates={self.rates!r}): a rate per hour must be 0 or more, and finite.")

    @classmethod
    def constant(cls, per_hour: float) -> Hazard:
        """The same at any age: `1 / 8` for a machine that lasts eight hours on average."""
        return cls(((0.0, per_hour),))

    def per_hour(self, age_h: float) -> float:
        """Losses per hour at an age."""
        return self.rates[bisect_right(self.rates, (age_h, math.inf)) - 1][1]

    def interval_s(self, cost_s: float, age_h: float) -> float:
        """T of the equation above, from an age on; infinite where the machine is never lost."""
        owed, begin = cost_s / HOUR_S, 0.0
        while True:
            rate, end = self.per_hour(age_h + begin), self._until_change_h(age_h + begin) + begin
            reached = math.sqrt(begin**2 + 2 * owed / rate) if rate else math.inf
            if reached <= end or end == math.inf:
                return reached * HOUR_S
            owed -= rate * (end**2 - begin**2) / 2
            begin = end

    def _until_change_h(self, age_h: float) -> float:
        position = bisect_right(self.rates, (age_h, math.inf))
        return self.rates[position][0] - age_h if position < len(self.rates) else math.inf


ONCE_A_DAY = Hazard(((0.0, 1 / 24),))
GCP_PREEMPTIBLE = Hazard(((0.0, 0.19), (3.0, 0.02)))
"""Measured on Google's preemptible machines: half of them are gone after two hours, the rest lasts."""


@dataclass(frozen=True, slots=True)
class SaveCost:
    """What saving and starting again were measured to take, in seconds."""

    stall_s: float
    """Training time that one save takes: the wait, and what it slows the steps beside it."""
    persist_s: float
    """From its beginning until the checkpoint is durable."""
    restart_s: float
    """From the loss of a machine to the first new step."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise SettingError(f"SaveCost({name}={value!r}): must be 0 or more seconds.")


@dataclass(frozen=True, slots=True)
class Interval:
    """When the next save is due."""

    steps: int
    """Optimizer steps after the last one."""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often to save: every so many steps, or as costs and risks say."""

    every_n_steps: int | None = None
    """None weighs cost and risk."""
    hazard: Hazard = ONCE_A_DAY
    """Where nothing is known of the machine: lost once a day."""
    longest_s: float = HOUR_S
    """However safe the machine: programs fail too, and people stop them."""

    def __post_init__(self) -> None:
        if self.every_n_steps is not None and self.every_n_steps < 1:
            raise SettingError(f"Cadence(every_n_steps={self.every_n_steps}): must be at least 1.")
        if not 0 < self.longest_s < math.inf:
            raise SettingError(f"Cadence(longest_s={self.longest_s}): must be more than 0 seconds.")

    def next_save(self, *, step_s: float, cost: SaveCost | None = None, age_h: float = 0.0) -> Interval:
        """Steps until the next save. `cost=None`: nothing was saved yet; `age_h` is the machine's."""
        if not 0 < step_s < math.inf:
            raise SettingError(f"step_s={step_s!r}: a step takes more than 0 seconds.")
        if cost is None:
            return self._first(step_s)
        hazard_per_h = self.hazard.per_hour(age_h)
        if self.every_n_steps is not None:
            because = "as set"
            return _interval(self.every_n_steps, step_s, cost, hazard_per_h, because)
        interval_s, because = self._weighed(cost, age_h)
        # Down: a save a little early costs less than one late. Up where a save takes longer to persist than that.
        steps = max(1, math.floor(interval_s / step_s), math.ceil(cost.persist_s / step_s))
        return _interval(steps, step_s, cost, hazard_per_h, because)

    def _first(self, step_s: float) -> Interval:
        if self.every_n_steps is not None:
            return Interval(self.every_n_steps, Reason(f"checkpoint_every={self.every_n_steps}", "as set"))
        steps = max(1, round(min(UNMEASURED_S, self.longest_s) / step_s))
        because = f"nothing was saved yet: the first save, after about {steps * step_s:.0f} s, measures what it costs."
        return Interval(steps, Reason(f"checkpoint_every={steps}", because, {"step_s": step_s}))

    def _weighed(self, cost: SaveCost, age_h: float) -> tuple[float, str]:
        best_s = self.hazard.interval_s(cost.stall_s, age_h)
        if best_s < cost.persist_s:
            return cost.persist_s, "no more often than a save takes to reach the disk"
        if best_s > self.longest_s:
            return self.longest_s, "losses are so rare that only the longest interval allowed limits it"
        return best_s, "saving costs as much as the work that is lost without it"


def _interval(steps: int, step_s: float, cost: SaveCost, hazard_per_h: float, because: str) -> Interval:
    """The choice with what it is expected to cost."""
    interval_s = steps * step_s
    lost_s = interval_s / 2 + cost.persist_s
    share = cost.stall_s / interval_s + hazard_per_h * (lost_s + cost.restart_s) / HOUR_S
    evidence: dict[str, float | int | str | bool] = {
        "interval_s": interval_s,
        "stall_s": cost.stall_s,
        "persist_s": cost.persist_s,
        "restart_s": cost.restart_s,
        "hazard_per_h": hazard_per_h,
        "lost_work_s": lost_s,
        "overhead_share": share,
    }
    sentence = (
        f"{because}: about every {_seconds(interval_s)} at {cost.stall_s:.2g} s a save and {hazard_per_h:.2g} losses "
        f"an hour. A loss takes {_seconds(lost_s)} of work along on average; saving, lost work and restarts together "
        f"take {share:.2%} of the time."
    )
    return Interval(steps, Reason(f"checkpoint_every={steps}", sentence, evidence))


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"
