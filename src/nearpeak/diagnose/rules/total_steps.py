"""The total optimization steps are not what was likely meant."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import evidence
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

FEW_UPDATES = 50
"""Fewer updates than this hardly leave a warm-up and a decay behind them."""
WHOLE = 0.9
"""Of the dataset that each rank goes through in an epoch: each reads all of it, not its part."""


def find(facts: Facts) -> list[Finding]:
    """Counted from what is known: batches an epoch, accumulation, ranks, epochs, warm-up."""
    if facts.run is None:
        return []
    return [*_not_divided(facts, facts.run), *_all_warm_up(facts, facts.run), *_few(facts, facts.run)]


def _not_divided(facts: Facts, run: RunFacts) -> list[Finding]:
    """Without a DistributedSampler every rank goes through all the data."""
    process = run.process
    known = process.batches_per_epoch and process.loader_batch_size and process.dataset_samples
    if run.world_size < 2 or not known:
        return []
    seen = (process.batches_per_epoch or 0) * (process.loader_batch_size or 0)
    if seen < WHOLE * (process.dataset_samples or 0) or seen < 2 * (process.loader_batch_size or 0):
        return []
    return [
        Finding(
            kind="steps",
            title=f"Each of {run.world_size} ranks goes through the whole dataset: an epoch makes {run.world_size} "
            "times the work that it names",
            evidence=evidence(
                facts.source,
                batches_per_epoch_of_a_rank=process.batches_per_epoch,
                loader_batch_size=process.loader_batch_size,
                dataset_samples=process.dataset_samples,
                ranks=run.world_size,
            ),
            severity="warning",
            remedy="DataLoader(sampler=DistributedSampler(dataset)) and sampler.set_epoch(epoch) before each epoch, or "
            "accelerator.prepare(loader). Fine as it is if each rank was given another dataset.",
            gain=None,
            verify=f"Count: batches an epoch must be samples ÷ (batch size × {run.world_size}), rounded up.",
        )
    ]


def _all_warm_up(facts: Facts, run: RunFacts) -> list[Finding]:
    steps, warm_up = run.process.expected_steps, run.process.arguments.get("warmup_steps")
    if not steps or not isinstance(warm_up, int) or warm_up < steps:
        return []
    return [
        Finding(
            kind="steps",
            title=f"The warm-up takes {warm_up:,} steps, the whole training only {steps:,}: the learning rate is never "
            "reached",
            evidence=evidence(facts.source, **_figures(run), warmup_steps=warm_up),
            severity="warning",
            remedy=f"TrainingArguments(warmup_steps={max(1, steps // 20)}), or warmup_ratio=0.05, which follows the "
            "number of steps.",
            gain=None,
            verify="Look at the learning rate in the report: it must rise to its peak and fall again.",
        )
    ]


def _few(facts: Facts, run: RunFacts) -> list[Finding]:
    process, batch = run.process, run.samples_per_step
    steps, accumulation = process.expected_steps, process.accumulation or run.micro_batches_per_step or 1
    if not steps or steps >= FEW_UPDATES or not batch or not process.dataset_samples or not process.epochs:
        return []
    if accumulation * run.world_size < 2:
        return []
    return [
        Finding(
            kind="steps",
            title=f"Only {steps} updates in all: accumulation {accumulation:.0f} × {run.world_size} rank(s) make a "
            f"global batch of {batch:.0f} of {process.dataset_samples:,} samples",
            evidence=evidence(facts.source, **_figures(run)),
            severity="warning",
            remedy="If that many samples an update were not meant, lower the accumulation: it was set for fewer "
            "ranks or a smaller device. global batch = batch size × accumulation × ranks.",
            gain=None,
            verify="Total optimization steps = epochs × samples ÷ global batch; see docs/optimization-steps.md.",
        )
    ]


def _figures(run: RunFacts) -> dict[str, float | int | None]:
    process = run.process
    return {
        "optimizer_steps": process.expected_steps,
        "epochs": process.epochs,
        "dataset_samples": process.dataset_samples,
        "global_batch": run.samples_per_step,
        "accumulation": process.accumulation,
        "ranks": run.world_size,
    }
