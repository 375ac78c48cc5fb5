"""fp16 that loses updates: without a scaler, or with one whose scale collapses."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import evidence, percent
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

MANY_SKIPPED = 0.02
"""A scaler that is left alone grows its scale every 2,000 updates and skips one for it; a few dozen at the start find
the scale. Skipping two of a hundred later on is forty times that."""
COLLAPSED = 1.0
"""Below it the scaler makes gradients smaller, not larger: the loss itself overflows."""
ON_16_BIT = "float16"


def find(facts: Facts) -> list[Finding]:
    """What is lost is learning, which is why this has no gain in time."""
    run = facts.run
    if run is None:
        return []
    return [*_without_scaler(facts, run), *_collapsing(facts, run)]


def _without_scaler(facts: Facts, run: RunFacts) -> list[Finding]:
    process = run.process
    if process.autocast_dtype != ON_16_BIT or process.grad_scaler is not False:
        return []
    return [
        Finding(
            kind="loss_scale",
            title="fp16 without a gradient scaler: small gradients become 0",
            evidence=evidence(facts.source, autocast_dtype=process.autocast_dtype, grad_scaler=False),
            severity="critical",
            remedy=_remedy(run),
            gain=None,
            verify="Compare the losses of both ways over some hundred steps.",
        )
    ]


def _collapsing(facts: Facts, run: RunFacts) -> list[Finding]:
    skipped = run.per_step.get("skipped_updates", 0.0)
    first, last = run.loss_scale or (None, None)
    collapsed = last is not None and last < COLLAPSED
    if skipped < MANY_SKIPPED and not collapsed:
        return []
    return [
        Finding(
            kind="loss_scale",
            title=f"fp16 loss scaling skips {percent(skipped)} of the updates"
            + (f"; its scale has collapsed to {last:.3g}" if collapsed else ""),
            evidence=evidence(
                facts.source, skipped_updates_per_step=skipped, first_loss_scale=first, last_loss_scale=last
            ),
            severity="critical",
            remedy=_remedy(run),
            gain=None,
            verify="Run again: no update after the first steps is skipped, and the loss falls as it should.",
        )
    ]


def _remedy(run: RunFacts) -> str:
    device = "cpu" if run.on_host else "cuda"
    narrow = trainer_argument(
        run,
        transformers="TrainingArguments(bf16=True, fp16=False)",
        lightning='Trainer(precision="bf16-mixed")',
        accelerate='Accelerator(mixed_precision="bf16")',
        plain=f'torch.autocast("{device}", torch.bfloat16) without GradScaler',
    )
    scaled = "torch.amp.GradScaler with its default growth_interval=2000; look for a loss that is summed, not averaged"
    if run.process.bf16_is_fast is False and not run.on_host:
        return f"The device has no units for bf16: {scaled}."
    return f"{narrow}: it has the range of fp32 and needs no scale. Where it must be fp16: {scaled}."
