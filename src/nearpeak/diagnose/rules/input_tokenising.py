"""Texts are tokenised while the step waits, the same ones again in every epoch."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import at, costs, percent
from nearpeak.diagnose.rules._input import gain_without, input_wait
from nearpeak.finding import Finding

__all__ = ["find"]


def find(facts: Facts) -> list[Finding]:
    """Samples of the fetching are met inside a tokeniser."""
    wait = input_wait(facts)
    if wait is None or wait.cause != "tokenising":
        return []
    return [
        costs(
            "input",
            f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for tokenising on the fly"
            f"{at(wait.place)}",
            facts,
            gain_without(wait),
            remedy="Tokenise once, before training: dataset = dataset.map(tokenize, batched=True), and let the "
            "collator only pad. Padding to the batch's longest stays possible: DataCollatorWithPadding(tokenizer).",
            verify="Run again: the phase `input` must fall, and no sample of it be inside the tokeniser.",
            formula="wait ÷ step × the share of tokenising in the fetching (at least half) × 0.4 to 1.25, likely 0.85",
            input_ms=wait.wait_ms,
            step_ms=wait.step_ms,
            fetch_ms=wait.fetch_ms,
            tokenising_share_of_samples=wait.place_share,
            workers=wait.workers,
        )
    ]
