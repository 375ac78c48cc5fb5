"""Saving takes a needless share of the run."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import rarer
from nearpeak.diagnose.rules._common import costs, percent, phase_share
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.05
"""Of the run; a machine that fails once a day loses less than that with a save every hour."""
TARGET_SHARE = 0.02


def find(facts: Facts) -> list[Finding]:
    """Told with the interval at which it would take 2 %."""
    run = facts.run
    if run is None or phase_share(run, "checkpoint") < SMALLEST_SHARE:
        return []
    times = run.events.get("checkpoint")
    every = facts.steps / max(1.0, times.count if times else 1.0)
    cost_ms = run.phase_ms["checkpoint"] * every
    apart, gain = rarer(run.mean_step_ms, cost_ms, every, TARGET_SHARE)
    return [
        costs(
            "checkpointing",
            f"Saving takes {percent(phase_share(run, 'checkpoint'))} of the run: {cost_ms:,.0f} ms every "
            f"{every:.0f} steps",
            facts,
            gain,
            remedy=trainer_argument(
                run,
                transformers=f'TrainingArguments(save_strategy="steps", save_steps={apart})',
                lightning=f"ModelCheckpoint(every_n_train_steps={apart})",
                plain=f"Save every {apart} steps",
            )
            + "; or beside the training: nearpeak's saver stages the state and writes it in a thread.",
            verify="Run again: saving must take less than 5 % of the run.",
            formula=f"1 − (step without saving + its time ÷ {apart} steps) ÷ step; low half, high 1.15 × all of it",
            checkpoint_share=phase_share(run, "checkpoint"),
            checkpoint_ms=cost_ms,
            steps_between=every,
            step_ms=run.mean_step_ms,
        )
    ]
