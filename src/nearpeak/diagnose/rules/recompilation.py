"""Compiled code is compiled again and again, most often because shapes change."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.03
NO_MORE = Portions(0.6, 0.95, 1.05)
"""What is not compiled again is saved, but for the one time that code for any shape takes. The best case is above the
time of the compiler itself: checking many versions' guards goes as well."""


def find(facts: Facts) -> list[Finding]:
    """Compiling takes a share of steps that are past the beginning."""
    run = facts.run
    if run is None:
        return []
    share = run.per_step.get("compile_ms", 0.0) / run.mean_step_ms
    if share < SMALLEST_SHARE:
        return []
    count = run.per_step.get("compilations", 0.0) * facts.steps
    change = trainer_argument(
        run,
        transformers='TrainingArguments(torch_compile=True) with torch._dynamo.mark_dynamic(batch["input_ids"], 1), '
        "or DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)",
        plain="torch.compile(model, dynamic=True), or pad lengths to few values (multiples of 64) and drop the last, "
        "smaller batch: DataLoader(drop_last=True)",
    )
    return [
        costs(
            "recompile",
            f"torch.compile compiled {count:.0f} times after the first steps: {percent(share)} of the step",
            facts,
            gain_of(min(share, 0.98), NO_MORE),
            remedy=f"{change}. TORCH_LOGS=recompiles names what changed.",
            verify="Run again: no compilation after the first steps.",
            formula="time of compiling ÷ step × 0.6 to 1.05, likely 0.95",
            compilations=count,
            compile_ms_per_step=run.per_step.get("compile_ms"),
            step_ms=run.mean_step_ms,
        )
    ]
