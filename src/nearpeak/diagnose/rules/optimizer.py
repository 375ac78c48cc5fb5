"""The update goes through the parameters one by one where one fused kernel would do."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.05
ONE_BY_ONE = Portions(0.4, 0.75, 0.95)
"""Adam's update in single operations is a dozen passes over each tensor, fused it is one: a quarter of the time where
memory is the bound, a tenth where starting the operations is."""
IN_GROUPS = Portions(0.1, 0.35, 0.6)
"""`foreach` starts few operations already, but still passes over memory several times."""
FUSED_NAMES = {"AdamW": "adamw_torch_fused", "Adam": "adamw_torch_fused"}


def find(facts: Facts) -> list[Finding]:
    """The update takes a share, and torch has a fused kernel that is not used."""
    run = facts.run
    if run is None or not run.process.can_fuse or run.process.optimizer_options.get("fused"):
        return []
    share = _share(run)
    if share < SMALLEST_SHARE:
        return []
    # On the CPU torch has no grouped form: whatever foreach says, it goes one by one.
    grouped = not run.on_host and run.process.optimizer_options.get("foreach") is not False
    portions = IN_GROUPS if grouped else ONE_BY_ONE
    return [
        costs(
            "optimizer",
            f"{run.process.optimizer}'s update is not fused: {percent(share)} of the step",
            facts,
            gain_of(share, portions),
            remedy=_remedy(run),
            verify="Run again: the phase `optimizer` must be shorter; the update is the same up to rounding.",
            formula=f"share of the update × {portions.low} to {portions.high}, likely {portions.likely}",
            optimizer_share=share,
            optimizer_ms=share * run.mean_step_ms,
            trainable_tensors=run.process.trainable_tensors,
            trainable_parameters=run.process.trainable_parameters,
            foreach=run.process.optimizer_options.get("foreach"),
            step_ms=run.mean_step_ms,
        )
    ]


def _share(run: RunFacts) -> float:
    """On the device's clock where it was read: the host's also holds what it waits for there."""
    on_host_ms = run.phase_ms.get("optimizer", 0.0)
    return run.per_step.get("device_optimizer_ms", on_host_ms) / run.mean_step_ms


def _remedy(run: RunFacts) -> str:
    name = run.process.optimizer or "AdamW"
    return trainer_argument(
        run,
        transformers=f'TrainingArguments(optim="{FUSED_NAMES.get(name, "adamw_torch_fused")}")',
        plain=f"torch.optim.{name}(…, fused=True)",
    )
