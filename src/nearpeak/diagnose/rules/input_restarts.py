"""Loader workers are started anew for every epoch."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._input import InputWait, input_wait, restart_ms
from nearpeak.diagnose.rules._settings import loader
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["find"]


def find(facts: Facts) -> list[Finding]:
    """Starting them takes most of the wait."""
    wait = input_wait(facts)
    if wait is None or wait.cause != "restarts" or facts.run is None:
        return []
    run = facts.run
    first_ms = run.workers.first_batch_ms if run.workers else None
    return [
        costs(
            "input",
            f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for input: the {wait.workers} workers "
            "are started anew for each epoch",
            facts,
            _gain(facts, wait),
            remedy=f"{loader(run, num_workers=wait.workers, persistent_workers=True)}: the workers then live as long "
            "as the loader. Make the loader once, outside the loop over epochs.",
            verify="Run again: one start of workers in all, and the phase `input` below 5 % of the step.",
            formula="low half of wait ÷ step, likely all of it, high 1 − 0.8 × median ÷ mean of the steps",
            input_ms=wait.wait_ms,
            step_ms=wait.step_ms,
            starts=run.events["loader_start"].count,
            first_batch_ms=first_ms,
            restarts_ms_per_step=restart_ms(run),
            persistent_workers=run.process.persistent_workers,
        )
    ]


def _gain(facts: Facts, wait: InputWait) -> Interval:
    """Starting and ending workers takes cores from the step as well: the median step, which follows no start, shows by
    how much at best."""
    usual = (facts.step_ms or wait.step_ms) / wait.step_ms
    return Interval(wait.share / 2, wait.share, min(MOST, max(wait.share, 1 - 0.8 * usual)))
