"""Ranks exchange gradients and nothing hides it: needlessly after each micro-batch, or because links are slow."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent, phase_share
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["find"]

SMALLEST_SHARE = 0.10
"""Of the step: the bound of PyTorch's own TensorBoard plugin; XProf tells from 3 %, alarms from 15 %."""
HIDDEN = Portions(0.1, 0.5, 0.9)
"""Larger buckets, 16-bit gradients and more overlap each hide a part; the last bucket is never hidden."""
LEFT_OUT_WORST, LEFT_OUT_LIKELY = 0.4, 1.0
"""An exchange that is not made is saved; the one that stays grows, as it finds less compute to hide behind. Best case:
what it did beside the backward pass (copies into buckets, threads of its own) goes as well, at most that whole pass."""


def find(facts: Facts) -> list[Finding]:
    """The exchange that the ranks wait for."""
    share = facts.breakdown.share("communication") if facts.breakdown else 0.0
    if share < SMALLEST_SHARE:
        return []
    if facts.run is not None and _exchanges_each_micro_batch(facts.run):
        return [_each_micro_batch(facts, facts.run, share)]
    return [
        costs(
            "communication",
            f"{percent(share)} of the step is exchange between ranks that no compute hides",
            facts,
            gain_of(share, HIDDEN),
            remedy="DistributedDataParallel(bucket_cap_mb=100, gradient_as_bucket_view=True), or half the bytes: "
            "model.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
            ".bf16_compress_hook), which rounds gradients. Check that ranks of a machine use its fast links.",
            verify="Run again: the share of exposed communication must fall below 10 %.",
            formula="share of the step × 0.1 to 0.9, likely 0.5",
            communication_share=share,
            ranks=facts.run.world_size if facts.run else _ranks(facts),
            hidden_share=facts.trace.hidden_communication_share if facts.trace else None,
            waiting_for_late_ranks_share=facts.trace.waiting_share if facts.trace else None,
            step_ms=facts.step_ms,
        )
    ]


def _ranks(facts: Facts) -> int | None:
    return (facts.trace.world_size if facts.trace else None) or len(facts.ranks) or None


def _exchanges_each_micro_batch(run: RunFacts) -> bool:
    """Known by count where it was counted; else taken to be so where a wrapper exchanges and nothing prevents it."""
    micro_batches, exchanges = run.micro_batches_per_step or 1.0, run.per_step.get("exchanges")
    return micro_batches >= 2 and exchanges is not None and exchanges >= 2


def _each_micro_batch(facts: Facts, run: RunFacts, share: float) -> Finding:
    parts = run.per_step["exchanges"]
    needless = share * (parts - 1) / parts
    backward = phase_share(run, "backward") + phase_share(run, "communication")
    best = min(MOST, max(needless, backward * (parts - 1) / parts))
    change = trainer_argument(
        run,
        transformers="TrainingArguments(gradient_accumulation_steps=…) with accelerate, which exchanges once an update",
        accelerate="with accelerator.accumulate(model): around each micro-batch",
        lightning="Trainer(accumulate_grad_batches=…), which exchanges once an update",
        plain="with model.no_sync(): around every micro-batch but the last",
    )
    return costs(
        "communication",
        f"Gradients are exchanged after each of {parts:.0f} micro-batches, once an update is enough: "
        f"{percent(needless)} of the step",
        facts,
        Interval(LEFT_OUT_WORST * needless, min(MOST, LEFT_OUT_LIKELY * needless), best),
        remedy=f"{change}: `no_sync` is missing. The gradient of the update stays the same.",
        verify="Run again: one exchange an update, and the share of communication lower.",
        formula="(n − 1) ÷ n × exposed communication, low 0.4 of it, high with the whole backward pass",
        communication_share=share,
        exchanges_per_step=parts,
        micro_batches_per_step=run.micro_batches_per_step,
        ranks=run.world_size,
        step_ms=run.mean_step_ms,
    )
