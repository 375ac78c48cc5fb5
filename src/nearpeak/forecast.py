"""`Forecast`: what a plan would need and take, before it runs. No figure comes without its interval and its basis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nearpeak.errors import SettingError

__all__ = ["Estimate", "Forecast", "Interval"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with what it may reasonably turn out to be: low ≤ likely ≤ high, all finite."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.low, self.likely, self.high))):
            raise SettingError(f"{self}: all three figures must be finite; what is unknown is None, not an interval.")
        if not self.low <= self.likely <= self.high:
            raise SettingError(f"{self}: must hold low ≤ likely ≤ high.")


@dataclass(frozen=True, slots=True)
class Estimate:
    """An interval and what it rests on."""

    interval: Interval
    calibrated_on: str
    """The measurements behind it, for a reader who wants to judge them: ``8 probes on this machine``."""

    def __post_init__(self) -> None:
        if not self.calibrated_on.strip():
            raise SettingError(f"Estimate({self.interval}): calibrated_on must say what the figure rests on.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one plan of a job would need on one device; what cannot be said is None."""

    peak_bytes: Estimate | None = None
    step_ms: Estimate | None = None
    run_cost_usd: Estimate | None = None

    def __post_init__(self) -> None:
        for name in ("peak_bytes", "step_ms", "run_cost_usd"):
            estimate: Estimate | None = getattr(self, name)
            if estimate is not None and estimate.interval.low < 0:
                raise SettingError(f"Forecast({name}={estimate.interval}): cannot be below 0.")
