"""Logging holds the step up, beyond the reading of values itself."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import ALMOST_ALL, gain_of
from nearpeak.diagnose.rules._common import at, costs, hottest, percent, phase_share
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.05


def find(facts: Facts) -> list[Finding]:
    """The phase `logging` without its synchronisations, which have a rule of their own."""
    run = facts.run
    if run is None:
        return []
    share = phase_share(run, "logging") - run.per_step.get("sync_ms", 0.0) / run.mean_step_ms
    if share < SMALLEST_SHARE:
        return []
    place = hottest(run, "logging")
    return [
        costs(
            "logging",
            f"{share * run.mean_step_ms:.1f} ms ({percent(share)}) of each step go to logging{at(place)}",
            facts,
            gain_of(share, ALMOST_ALL),
            remedy=trainer_argument(
                run,
                transformers="TrainingArguments(logging_steps=50)",
                lightning="Trainer(log_every_n_steps=50)",
                plain="Log every fiftieth step: if step % 50 == 0",
            )
            + f"{at(place)}.",
            verify="Run again: the phase `logging` must fall below 5 % of the step.",
            formula="share of the step × 0.5 to 1.15, likely 0.85",
            logging_ms=share * run.mean_step_ms,
            step_ms=run.mean_step_ms,
        )
    ]
