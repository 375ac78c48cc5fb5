"""Micro-batches too small for the device, held together by accumulation that is no longer needed."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST
from nearpeak.diagnose.rules._common import costs, evidence, percent, phase_share
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.rules._work import is_mostly_start_up, operation_ms
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["find"]

USED_PART = 0.5
"""Of the device's memory at the peak: below, twice the micro-batch fits, as weights and optimizer do not grow."""
PASSES = ("forward", "backward")
PART_OF_OVERHEAD = (0.35, 0.85, 1.1)
"""Of the time that micro-batches take beyond the first: how much is start-up of operations and not arithmetic."""


def find(facts: Facts) -> list[Finding]:
    """With accumulation, larger micro-batches keep the global batch; without, a larger batch is another job."""
    run = facts.run
    if run is None or not _is_small(run):
        return []
    parts = run.micro_batches_per_step or 1.0
    return [_accumulated(facts, run, round(parts))] if parts >= 2 else [_single(facts, run)]


def _is_small(run: RunFacts) -> bool:
    passes = sum(phase_share(run, phase) for phase in PASSES)
    if run.on_host is None or passes < USED_PART or not is_mostly_start_up(run):
        return False
    if (run.micro_batches_per_step or 1.0) >= 2:
        return run.on_host or _has_room(run) is not False
    return not run.on_host and bool(_has_room(run))


def _has_room(run: RunFacts) -> bool | None:
    """None where the memory of the device was not read."""
    device = next((each for each in run.readings if each.device == (run.process.device_index or 0)), None)
    peak = run.per_step.get("peak_bytes")
    if device is None or not device.memory_total_bytes or peak is None:
        return None
    return peak < USED_PART * device.memory_total_bytes


def _accumulated(facts: Facts, run: RunFacts, parts: int) -> Finding:
    passes = sum(phase_share(run, phase) for phase in PASSES)
    size = (run.samples_per_step or 0) / parts / max(1, run.world_size)
    low, likely, high = (min(MOST, passes * (1 - 1 / parts) * part) for part in PART_OF_OVERHEAD)
    return costs(
        "underfilled",
        f"{parts} micro-batches{f' of {size:.0f} samples' if size else ''} an update are too small for the device: "
        f"{percent(passes)} of the step is mostly start-up of operations",
        facts,
        Interval(low, likely, high),
        remedy=_remedy(run, parts, size),
        verify="Run again: fewer micro-batches a step at the same samples a step, and losses that agree.",
        formula="share of forward and backward × (1 − 1 ÷ micro-batches) × 0.35 to 1.1, likely 0.85",
        micro_batches_per_step=parts,
        samples_per_step=run.samples_per_step,
        operation_ms=operation_ms(run),
        starved_share=run.per_step.get("starved_share"),
        passes_share=passes,
        peak_bytes=run.per_step.get("peak_bytes"),
        step_ms=run.mean_step_ms,
    )


def _remedy(run: RunFacts, parts: int, size: float) -> str:
    whole = f"{size * parts:.0f}" if size else f"{parts} times the size"
    return trainer_argument(
        run,
        transformers=f"TrainingArguments(per_device_train_batch_size={whole}, gradient_accumulation_steps=1)",
        lightning=f"DataLoader(batch_size={whole}) and Trainer(accumulate_grad_batches=1)",
        accelerate=f"DataLoader(batch_size={whole}) and Accelerator(gradient_accumulation_steps=1)",
        plain=f"DataLoader(batch_size={whole}) and no accumulation",
    ) + (
        ": the global batch and the number of updates stay the same. As far as memory allows; with nearpeak's "
        "`--apply safe` it is done and checked."
    )


def _single(facts: Facts, run: RunFacts) -> Finding:
    return Finding(
        kind="underfilled",
        title="The batch is too small to keep the device busy: it waits for its host throughout",
        evidence=evidence(
            facts.source,
            starved_share=run.per_step.get("starved_share"),
            samples_per_step=run.samples_per_step,
            peak_bytes=run.per_step.get("peak_bytes"),
            step_ms=run.mean_step_ms,
        ),
        severity="info",
        remedy='Launch less: torch.compile(model, mode="reduce-overhead"). A larger batch would fit in memory, but it '
        "is another training: fewer updates, and a learning rate to be found anew.",
        gain=None,
        verify="Run again: fewer phase boundaries at which the device has nothing left to do.",
    )
