"""Much of what is computed is padding."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.15
"""Of the tokens computed: batches padded to their own longest sample often carry as much, and grouping costs order."""
TAKEN_AWAY = Portions(0.45, 0.8, 1.1)
"""Padding to each batch's longest leaves a part. Attention grows faster than length, so more than its share may come
back; small batches keep costs that do not shrink with length."""
IN_COMPUTE = ("forward", "backward")


def find(facts: Facts) -> list[Finding]:
    """Tokens of padding cost as much as real ones."""
    run = facts.run
    if run is None or run.padded_share is None or run.padded_share < SMALLEST_SHARE:
        return []
    compute = sum(run.phase_ms.get(phase, 0.0) for phase in IN_COMPUTE) / run.mean_step_ms
    if facts.breakdown is not None and run.on_host is False:
        compute = max(compute, facts.breakdown.share("compute"))
    return [
        costs(
            "padding",
            f"{percent(run.padded_share)} of the tokens computed are padding",
            facts,
            gain_of(min(MOST, run.padded_share * compute), TAKEN_AWAY),
            remedy=_remedy(run),
            verify="Run again: the share of padding must fall, at the same samples a step.",
            formula="share of padding × share of forward and backward in the step × 0.45 to 1.1, likely 0.8",
            padded_share=run.padded_share,
            tokens_per_step=run.per_step.get("tokens"),
            computed_tokens_per_step=run.per_step.get("padded_tokens"),
            compute_share=compute,
            step_ms=run.mean_step_ms,
        )
    ]


def _remedy(run: RunFacts) -> str:
    return (
        trainer_argument(
            run,
            transformers="Tokenize without padding and let the collator pad each batch to its longest: "
            'DataCollatorWithPadding(tokenizer, padding="longest"); TrainingArguments(group_by_length=True) takes away '
            "more, and changes the order of the samples",
            plain='Pad each batch to its own longest sample, in the collator: padding="longest" in place of '
            '"max_length", or torch.nn.utils.rnn.pad_sequence',
        )
        + ". What is learned stays the same where the mask covers the padding."
    )
