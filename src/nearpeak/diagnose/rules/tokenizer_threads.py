"""The tokeniser's own threads are switched off, by hand or because the process was forked, and it tokenises alone."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._input import input_wait
from nearpeak.finding import Finding

__all__ = ["find"]

OFF = ("false", "0", "off", "no", "n", "f")
SPREAD = Portions(0.0, 0.3, 0.7)
"""Batches are split by text; small ones gain nothing, and a compute that uses the cores as well gains less."""


def find(facts: Facts) -> list[Finding]:
    """Only where the step waits for tokenising at all. In workers one thread each is right."""
    run, wait = facts.run, input_wait(facts)
    if run is None or wait is None or wait.cause != "tokenising" or wait.workers or (wait.cores or 1) < 2:
        return []
    if run.process.environment.get("TOKENIZERS_PARALLELISM", "").lower() not in OFF:
        return []
    share = wait.share * wait.place_share * (1 - 1 / (wait.cores or 2))
    return [
        costs(
            "threads",
            f"TOKENIZERS_PARALLELISM=false: texts are tokenised by one of {wait.cores} cores, "
            f"{percent(wait.share)} of the step wait for it",
            facts,
            gain_of(share, SPREAD),
            remedy="Tokenise before training; or TOKENIZERS_PARALLELISM=true without loader workers. With workers, "
            "make the tokeniser inside them (first used after the fork), or it falls back to one thread by itself.",
            verify="Run again: the phase `input` must fall.",
            formula="wait ÷ step × share of tokenising × (1 − 1 ÷ cores) × 0 to 0.7, likely 0.3",
            input_ms=wait.wait_ms,
            cores=wait.cores,
            tokenizers_parallelism=run.process.environment["TOKENIZERS_PARALLELISM"],
        )
    ]
