"""Waiting for input, as far as a trace or a log shows it; of a watched run the rules beside this one tell the cause."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import HIDDEN_INPUT, HIDDEN_INPUT_PAIR, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._input import SMALLEST_WAIT
from nearpeak.finding import Finding

__all__ = ["find"]


TORCH_REMEDY = (
    "Let workers prepare batches ahead: DataLoader(num_workers=4, persistent_workers=True, pin_memory=True). With "
    "workers already there, more of them, or less work for each sample."
)
XPLANE_REMEDY = (
    "Let the input pipeline work ahead. tf.data: map(…, num_parallel_calls=tf.data.AUTOTUNE), interleave files alike, "
    "cache() what fits, prefetch(tf.data.AUTOTUNE) last. JAX: a loader with workers, and jax.device_put of the next "
    "batch while the step runs."
)


def find(facts: Facts) -> list[Finding]:
    """The device is idle because the next batch is not there."""
    if facts.run is not None or facts.breakdown is None or facts.breakdown.share("input") < SMALLEST_WAIT:
        return []
    share = facts.breakdown.share("input")
    return [
        costs(
            "input",
            f"The device waits for its input in {percent(share)} of the step",
            facts,
            gain_of(share, HIDDEN_INPUT),
            remedy=XPLANE_REMEDY if facts.trace is not None and facts.trace.is_xplane else TORCH_REMEDY,
            verify="Record again: the share of idle time spent waiting for input must fall below 5 %.",
            formula="exposed waiting ÷ step (the ceiling: the step's own host work grows) × 0.35 to 1.0, likely 0.75",
            calibration=HIDDEN_INPUT_PAIR,
            input_share=share,
            step_ms=facts.step_ms,
            longest_stage=facts.trace.input_stage if facts.trace is not None else None,
        )
    ]
