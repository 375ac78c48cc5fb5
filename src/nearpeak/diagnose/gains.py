"""What a remedy brings, as the share of the step's time saved: formulas and the factors behind them, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.finding import Severity
from nearpeak.forecast import Interval

__all__ = [
    "ALMOST_ALL",
    "HIDDEN_INPUT",
    "HIDDEN_INPUT_PAIR",
    "LEFT_OUT_INPUT",
    "MOST",
    "Portions",
    "gain_between",
    "gain_of",
    "rarer",
    "severity_of",
    "step_after",
]

CRITICAL_GAIN, WARNING_GAIN = 0.20, 0.05
"""XProf's bounds for waiting on input (≥ 5 % moderate, ≥ 20 % high), taken for every kind of time lost."""
MOST = 0.995
"""No remedy removes a whole step."""


@dataclass(frozen=True, slots=True)
class Portions:
    """Of a time lost, what a remedy gives back: in a bad, the usual and the best case."""

    low: float
    likely: float
    high: float


BESIDE = 1.15
"""What is left out had also emptied caches and taken cores from others: so much of its own time beyond it."""
HIDDEN_INPUT = Portions(0.35, 0.75, 1.0)
"""Three published pairs of traces, workers 0 → 4: hiding all waits predicted 22.9, 33.4 and 21.0 % where 8.9, 20.6 and
18.7 % (means) and 16.7, 28.6 and 21.4 % (medians) came: 0.39 to 1.0 of the prediction, as CPU work of the step grew."""
HIDDEN_INPUT_PAIR = (
    "ResNet-50 on a V100, num_workers 0 to 4: 22.9 % of the step was exposed waiting, the ceiling; the mean step "
    "became 8.9 % shorter, the median 16.7 %"
)
"""One of those pairs, for findings to name."""
LEFT_OUT_INPUT = Portions(0.4, 0.85, 1.25)
"""Work that is no longer done at all, in place of being hidden: it leaves the cores to the step as well."""
ALMOST_ALL = Portions(0.5, 0.85, 1.15)
"""For work that is simply left out: a part of it stays; and what it did to caches and cores goes with it."""


def gain_of(share: float, portions: Portions) -> Interval:
    """`share` of the step is lost; portions of it come back."""
    return Interval(*(min(MOST, max(0.0, share * part)) for part in (portions.low, portions.likely, portions.high)))


def gain_between(step_ms: float, *, best_ms: float, likely_ms: float, worst_ms: float) -> Interval:
    """From the step that is to the steps that may come of it; a step never gets slower by our count."""
    likely = _saved(step_ms, likely_ms)
    return Interval(min(likely, _saved(step_ms, worst_ms)), likely, max(likely, _saved(step_ms, best_ms)))


def rarer(step_ms: float, cost_ms: float, every: float, target_share: float) -> tuple[int, Interval]:
    """Something costs `cost_ms` every so many steps: how seldom it takes at most `target_share`, and what that brings.

    Best: it costs nothing any more, and neither does what it did to caches. Worst: half of what is likely.
    """
    plain_ms = max(step_ms - cost_ms / every, 0.0)
    apart = max(_rounded_up(cost_ms / (target_share * max(plain_ms, 1e-6))), round(every) + 1)
    likely = _saved(step_ms, plain_ms + cost_ms / apart)
    return apart, Interval(likely / 2, likely, min(MOST, max(likely, BESIDE * _saved(step_ms, plain_ms))))


def step_after(step_ms: float, gain: Interval) -> Interval:
    """How long the step would take, by the share of it that is saved."""
    return Interval(step_ms * (1 - gain.high), step_ms * (1 - gain.likely), step_ms * (1 - gain.low))


def severity_of(gain: Interval) -> Severity:
    """By the likely gain."""
    return "critical" if gain.likely >= CRITICAL_GAIN else "warning" if gain.likely >= WARNING_GAIN else "info"


def _saved(step_ms: float, after_ms: float) -> float:
    return min(MOST, max(0.0, 1 - after_ms / step_ms)) if step_ms > 0 else 0.0


def _rounded_up(value: float) -> int:
    """To one digit that people write: 1, 2 or 5 times a power of ten."""
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale >= value:
                return digit * scale
        scale *= 10
