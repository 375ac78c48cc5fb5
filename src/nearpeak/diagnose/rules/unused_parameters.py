"""DistributedDataParallel looks for unused parameters in every step."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, phase_share
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.finding import Finding

__all__ = ["find"]

SEARCHED = Portions(0.0, 0.04, 0.15)
"""The graph is walked after each forward pass, and buckets are exchanged only when all of it is known: dearer the more,
and the smaller, the tensors."""


def find(facts: Facts) -> list[Finding]:
    """Needless if every parameter has its gradient in every step, which torch says itself in a warning."""
    run = facts.run
    if run is None or not run.process.find_unused_parameters or run.world_size < 2:
        return []
    passes = phase_share(run, "forward") + phase_share(run, "backward")
    return [
        costs(
            "communication",
            "DistributedDataParallel searches the graph for unused parameters in every step",
            facts,
            gain_of(passes, SEARCHED),
            remedy=trainer_argument(
                run,
                transformers="TrainingArguments(ddp_find_unused_parameters=False)",
                lightning='Trainer(strategy="ddp")',
                plain="DistributedDataParallel(model, find_unused_parameters=False)",
            )
            + ", unless branches of the model are skipped in some steps; torch raises if one is. "
            "static_graph=True where the same ones are skipped in all.",
            verify="Run again: no error, and forward and backward somewhat shorter.",
            formula="share of forward and backward × 0 to 0.15, likely 0.04",
            find_unused_parameters=True,
            passes_share=passes,
            trainable_tensors=run.process.trainable_tensors,
        )
    ]
