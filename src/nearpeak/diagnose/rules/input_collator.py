"""Putting samples together into a batch takes longer than getting them."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import at, costs, percent
from nearpeak.diagnose.rules._input import gain_without, input_wait
from nearpeak.finding import Finding

__all__ = ["find"]


def find(facts: Facts) -> list[Finding]:
    """Most samples of the fetching are met inside the user's collator."""
    wait = input_wait(facts)
    if wait is None or wait.cause != "collator":
        return []
    return [
        costs(
            "input",
            f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for a slow collator{at(wait.place)}",
            facts,
            gain_without(wait),
            remedy=f"Build the batch from whole tensors, not number by number{at(wait.place)}: torch.stack or "
            "torch.nn.utils.rnn.pad_sequence over the samples' tensors; let the dataset return tensors.",
            verify="Run again: the phase `input` must fall, and few samples of it be inside the collator.",
            formula="wait ÷ step × the collator's share of the fetching × 0.4 to 1.25, likely 0.85",
            input_ms=wait.wait_ms,
            step_ms=wait.step_ms,
            fetch_ms=wait.fetch_ms,
            collator_share_of_samples=wait.place_share,
            workers=wait.workers,
        )
    ]
