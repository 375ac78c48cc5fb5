"""`nn.DataParallel`: one process drives all devices, and copies the model to them in every step."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, phase_share
from nearpeak.finding import Finding

__all__ = ["find"]

REPLACED = Portions(0.05, 0.25, 0.6)
"""Copies of the parameters in every step, Python threads that share one interpreter, outputs gathered on one device.
Wide, as it depends on the size of the model and the speed of the links."""


def find(facts: Facts) -> list[Finding]:
    """The wrapper is seen, on devices."""
    run = facts.run
    if run is None or "DataParallel" not in run.process.wrappers or run.on_host:
        return []
    passes = phase_share(run, "forward") + phase_share(run, "backward")
    return [
        costs(
            "parallelism",
            "nn.DataParallel drives all devices from one process and copies the model to them in every step",
            facts,
            gain_of(passes, REPLACED),
            remedy="torchrun --nproc-per-node N train.py with DistributedDataParallel(model, device_ids=[local_rank]) "
            "and DistributedSampler; divide the batch size by N so that the global batch stays. With transformers it "
            "is enough to start with torchrun.",
            verify="Run again: the same samples a step in less time, and losses that agree.",
            formula="share of forward and backward × 0.05 to 0.6, likely 0.25",
            wrappers=", ".join(run.process.wrappers),
            passes_share=passes,
            step_ms=run.mean_step_ms,
        )
    ]
