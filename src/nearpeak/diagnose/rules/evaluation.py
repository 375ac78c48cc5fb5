"""Evaluation takes a needless share of the run."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import rarer
from nearpeak.diagnose.rules._common import costs, percent, phase_share
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.10
"""Of the run: whoever evaluates wants to know something, and pays for it knowingly up to a point."""
TARGET_SHARE = 0.03


def find(facts: Facts) -> list[Finding]:
    """Told with the interval at which it would take 3 %."""
    run = facts.run
    if run is None or phase_share(run, "evaluation") < SMALLEST_SHARE:
        return []
    times = run.events.get("evaluation")
    every = facts.steps / max(1.0, times.count if times else 1.0)
    cost_ms = run.phase_ms["evaluation"] * every
    apart, gain = rarer(run.mean_step_ms, cost_ms, every, TARGET_SHARE)
    return [
        costs(
            "evaluation",
            f"Evaluation takes {percent(phase_share(run, 'evaluation'))} of the run: {cost_ms:,.0f} ms every "
            f"{every:.0f} steps",
            facts,
            gain,
            remedy=trainer_argument(
                run,
                transformers=f'TrainingArguments(eval_strategy="steps", eval_steps={apart})',
                lightning=f"Trainer(val_check_interval={apart}, check_val_every_n_epoch=None)",
                plain=f"Evaluate every {apart} steps",
            )
            + ", or a fixed sample of the validation data, in larger batches (no gradients are kept).",
            verify="Run again: evaluation must take less than 10 % of the run.",
            formula=f"1 − (step without it + its time ÷ {apart} steps) ÷ step; low half, high 1.15 × all of it",
            evaluation_share=phase_share(run, "evaluation"),
            evaluation_ms=cost_ms,
            steps_between=every,
            step_ms=run.mean_step_ms,
        )
    ]
