"""Assertions for your own tests: that a plan does not change what your job learns, and that a stop does not either.

from nearpeak.testing import assert_same_training

def test_my_plan_learns_the_same():
    assert_same_training(make_job(), Plan(micro_batching="fixed", micro_batch=8), Plan(), steps=3)
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from nearpeak.errors import NotEquivalentError, SettingError
from nearpeak.job import Job, job_steps
from nearpeak.plan import Plan

__all__ = ["SameTraining", "assert_exact_resume", "assert_same_training"]

TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 3e-2, "fp16": 1e-2}
"""Largest difference of a step's loss, relative to the loss where that is above 1."""
WEIGHT_TOLERANCE = 100
"""Weights may differ by this many times the tolerance of losses: Adam turns the rounding of near-zero gradients (a key
bias has none at all) into steps of full size, which changes weights that no loss depends on."""


@dataclass(frozen=True, slots=True)
class SameTraining:
    """How equal two plans' trainings were."""

    losses_a: tuple[float, ...]
    losses_b: tuple[float, ...]
    loss_deviation: float
    """Largest difference of a step's loss, relative to the loss where that is above 1."""
    weight_deviation: float
    """|a - b| / |a| over all weights after the last step."""


def assert_same_training(
    job: Job, plan_a: Plan, plan_b: Plan, steps: int, *, tolerance: float | None = None, device: str | None = None
) -> SameTraining:
    """Run both plans from the job's present weights; raise NotEquivalentError unless they learn the same.

    The job itself is not touched. Dropout is switched off in both: its masks differ by construction when samples are
    grouped differently. The tolerance defaults to what the less exact of the two precisions explains.
    """
    available = job_steps(job).optimizer_steps
    if not 1 <= steps <= available:
        raise SettingError(
            f"assert_same_training(steps={steps}): the job makes {available} optimizer steps; give 1 to {available}."
        )
    limit = max(TOLERANCE[plan_a.precision], TOLERANCE[plan_b.precision]) if tolerance is None else tolerance
    losses_a, weights_a = _train(job, plan_a, steps, device)
    losses_b, weights_b = _train(job, plan_b, steps, device)
    same = SameTraining(
        losses_a, losses_b, _loss_deviation(losses_a, losses_b), _weight_deviation(weights_a, weights_b)
    )
    if not (same.loss_deviation <= limit and same.weight_deviation <= limit * WEIGHT_TOLERANCE):
        raise NotEquivalentError(
            f"The two plans learn different things: losses differ by up to {same.loss_deviation:.2e} and weights by "
            f"{same.weight_deviation:.2e} (allowed: {limit:.0e} and {limit * WEIGHT_TOLERANCE:.0e}) in {steps} steps.\n"
            f"  first:  {_shown(losses_a)}\n  second: {_shown(losses_b)}"
        )
    return same


def _train(job: Job, plan: Plan, steps: int, device: str | None):  # type: ignore[no-untyped-def]
    from nearpeak.train.run import Run
    from nearpeak.train.untraced import dropout_off, random_state_kept

    model = copy.deepcopy(job.model)
    with random_state_kept(), dropout_off(model):
        run = Run(replace(job, model=model), plan, device=device)
        losses = []
        for step in run:
            losses.append(step.loss)
            if len(losses) == steps:
                break
    return tuple(losses), [parameter.detach().double().cpu() for parameter in model.parameters()]


def _loss_deviation(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max(abs(x - y) / max(1.0, abs(x)) for x, y in zip(a, b, strict=True))


def _weight_deviation(a, b) -> float:  # type: ignore[no-untyped-def]
    difference = sum(float((x - y).square().sum()) for x, y in zip(a, b, strict=True))
    size = sum(float(x.square().sum()) for x in a)
    return (difference / size) ** 0.5 if size else 0.0


def _shown(losses: tuple[float, ...]) -> str:
    return ", ".join(f"{loss:.6f}" for loss in losses[:8]) + (", …" if len(losses) > 8 else "")


def assert_exact_resume(
    make_job: Callable[[], Job],
    kill_at: int | Iterable[int],
    *,
    plan: Plan | None = None,
    new_plan: Plan | None = None,
    device: str | None = None,
) -> None:
    """Train to the end at once; then again, stopped before each step of `kill_at` and taken up by a new run from disk.

    Raise NotEquivalentError unless both have the same losses and the same final weights, bit for bit. `make_job` makes
    the same job anew each time, with new weights of the same values. With `new_plan` the second half runs under another
    plan, and only the windows can be the same: then losses and weights may differ by rounding.
    """
    plan = Plan() if plan is None else plan
    losses, weights = _train_on(make_job(), plan, None, device, None)
    for stop in [kill_at] if isinstance(kill_at, int) else kill_at:
        with tempfile.TemporaryDirectory(prefix="nearpeak-") as folder:
            saving = replace(plan, checkpoint_every=max(1, stop))
            before, _ = _train_on(make_job(), saving, folder, device, stop)
            after, resumed = _train_on(make_job(), new_plan or saving, folder, device, None)
        _compare_resumed(stop, losses, [*before, *after], weights, resumed, exact=new_plan is None)


def _train_on(job: Job, plan: Plan, folder: str | None, device: str | None, stop: int | None):  # type: ignore[no-untyped-def]
    """Losses up to `stop`, and the weights then."""
    from nearpeak.train.run import Run
    from nearpeak.train.state import Checkpoints

    kept = None if folder is None else Checkpoints(folder=folder, notices=None)
    run, losses = Run(job, plan, device=device, checkpoints=kept), []
    if stop == 0:
        return losses, {}
    for step in run:
        if stop is not None and step.index >= stop:
            break  # after the save of step `stop`, in the middle of what comes next
        losses.append(step.loss)
    return losses, {name: value.detach().clone() for name, value in run.model.state_dict().items()}


def _compare_resumed(stop: int, losses, resumed, weights, final, *, exact: bool) -> None:  # type: ignore[no-untyped-def]
    import torch

    tolerance = 0.0 if exact else TOLERANCE["fp32"]
    same = len(losses) == len(resumed) and _loss_deviation(losses, resumed) <= tolerance
    odd = [name for name, value in weights.items() if exact and not torch.equal(value, final[name])]
    if not same or odd:
        first = next((i for i, pair in enumerate(zip(losses, resumed, strict=False)) if pair[0] != pair[1]), None)
        where = f" ({odd[0]})" if odd else ""
        raise NotEquivalentError(
            f"Stopped before step {stop} and resumed, the training is another: {len(losses)} steps against "
            f"{len(resumed)}, losses first differ at step {first}, {len(odd)} of {len(weights)} tensors differ{where}."
        )
