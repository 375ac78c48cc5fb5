"""Side by side: the same windows trained by the tutorial's loop and by nearpeak, one improvement after another.

Every rung starts from the same weights and trains its own copy. Step k is made by all of them before step k + 1, so
that whatever else the machine does falls on all alike.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nearpeak.plan import LoaderSettings, Plan
from nearpeak.reason import Reason
from nearpeak.tasks.standard_library import tutorial

if TYPE_CHECKING:
    from torch.nn import Module

    from nearpeak.job import Job
    from nearpeak.train.run import Run

__all__ = ["Ladder", "Rung", "climb", "deviation", "make_job"]

IN_PROCESS = LoaderSettings(workers=0)
"""The samples are in memory already: worker processes would only cost."""
SHORT_TOKENS = 24
TIE = 0.97
"""A difference of less than 3 % is noise on a few windows."""


@dataclass(slots=True)
class Rung:
    """One way to execute the job, and what its steps took."""

    name: str
    setting: str
    plan: Plan | None
    """None for the tutorial's own loop."""
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def precision(self) -> str:
        """What products are computed in."""
        return "fp32" if self.plan is None else self.plan.precision

    @property
    def cpu_s_per_step(self) -> float:
        """Mean over the compared windows."""
        return sum(self.cpu_s) / len(self.cpu_s)

    @property
    def wall_s_per_step(self) -> float:
        """Mean over the compared windows."""
        return sum(self.wall_s) / len(self.wall_s)


@dataclass(slots=True)
class Ladder:
    """All rungs after the same number of steps; the first is the tutorial's."""

    rungs: list[Rung]
    left_out: list[Reason]
    """Rungs that this machine or model does not have."""

    @property
    def steps(self) -> int:
        """Windows that every rung has trained on."""
        return len(self.rungs[0].losses)

    def fastest(self, precision: str | None = None) -> Rung:
        """The rung of nearpeak's with the fewest CPU seconds, of one precision or any; a tie goes to the earlier."""
        rungs = [rung for rung in self.rungs if rung.plan and precision in (None, rung.precision)]
        best = rungs[0]
        for rung in rungs[1:]:
            if rung.cpu_s_per_step < TIE * best.cpu_s_per_step:
                best = rung
        return best

    def ratio(self, rung: Rung) -> float:
        """How many times fewer CPU seconds than the tutorial's loop."""
        return self.rungs[0].cpu_s_per_step / rung.cpu_s_per_step

    def deviation(self, rung: Rung) -> float:
        """Largest relative difference of a step's loss from the tutorial's."""
        return deviation(self.rungs[0].losses, rung.losses)


def deviation(reference: Sequence[float], losses: Sequence[float]) -> float:
    """Largest relative difference of losses, step by step."""
    return max(abs(ours - theirs) / abs(theirs) for theirs, ours in zip(reference, losses, strict=True))


def make_job(model: Module, samples: list[dict[str, Any]], optimizer_steps: int, seed: int) -> Job:
    """What both sides learn."""
    from nearpeak.job import Job

    return Job(
        model=model,
        data=samples,
        loss=_loss,
        optimizer=tutorial.make_optimizer,
        global_batch=tutorial.GLOBAL_BATCH,
        optimizer_steps=optimizer_steps,
        schedule=tutorial.warm_up_then_fall,
        clip_norm=tutorial.CLIP_NORM,
        seed=seed,
    )


def _loss(model: Any, batch: Any) -> Any:
    return model(**batch).loss


def climb(
    model: Module,
    samples: list[dict[str, Any]],
    tokenizer: Any,
    *,
    most_steps: int,
    budget_s: float,
    seed: int,
    made: Callable[[str, float, int, bool], None] = lambda name, wall_s, step, last: None,
) -> Ladder:
    """Train every rung for up to `most_steps` windows, or fewer where another would not fit the budget."""
    rungs, left_out = _rungs(model)
    ladder = Ladder(rungs, left_out)
    _warm_up(rungs, model, samples, tokenizer, seed)
    with ExitStack() as running:
        sides = [_start(rung, model, samples, tokenizer, most_steps, seed) for rung in rungs]
        for side in sides:
            running.enter_context(closing(side))
        start = time.perf_counter()
        for step in range(most_steps):
            for rung, side in zip(rungs, sides, strict=True):
                _timed_step(rung, side)
                made(rung.name, rung.wall_s[-1], step, rung is rungs[-1])
            spent_s = time.perf_counter() - start
            if spent_s * (step + 2) / (step + 1) > budget_s:
                break
    return ladder


def _warm_up(rungs: list[Rung], model: Module, samples: list[dict[str, Any]], tokenizer: Any, seed: int) -> None:
    """One short step of each kind on copies: what a library loads or builds when first used belongs to no side."""
    short = [_shortened(sample, SHORT_TOKENS) for sample in samples[: tutorial.GLOBAL_BATCH]]
    for rung in rungs[1:]:  # the second rung is the first one's code at a shorter length
        with closing(_start(rung, model, short, tokenizer, 1, seed)) as side:
            next(side)


def _shortened(sample: dict[str, Any], tokens: int) -> dict[str, Any]:
    return {key: value[:tokens] if isinstance(value, list) else value for key, value in sample.items()}


def _timed_step(rung: Rung, side: Iterator[float]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    rung.losses.append(next(side))
    rung.cpu_s.append(time.process_time() - cpu)
    rung.wall_s.append(time.perf_counter() - wall)


def _start(rung: Rung, model: Module, samples: list[dict[str, Any]], tokenizer: Any, steps: int, seed: int) -> Any:
    """The losses of a rung's steps, each computed when it is asked for."""
    job = make_job(copy.deepcopy(model), samples, steps, seed)
    if rung.plan is not None:
        from nearpeak.train.run import Run

        # Built here, outside of any timing: it checks the plan's gradient before the first step.
        return _losses(Run(job, rung.plan, device="cpu"))
    order = _same_order(job)
    padding = "max_length" if rung.setting == "padding=max_length" else "longest"
    return tutorial.tutorial_steps(job.model, samples, order, tokenizer, padding=padding, optimizer_steps=steps)


def _losses(run: Run) -> Iterator[float]:
    for step in run:
        yield step.loss


def _same_order(job: Job) -> list[int]:
    """The samples of the job's windows, in order, for a loader that knows nothing of windows."""
    from nearpeak.job import job_steps
    from nearpeak.train.order import order_of

    order = order_of(job)
    assert order is not None
    return [index for k in range(job_steps(job).optimizer_steps) for index in order.window(k).indices]


def _rungs(model: Module) -> tuple[list[Rung], list[Reason]]:
    """The tutorial's loop, then one improvement after another, each on top of those before."""
    rungs = [
        Rung("as in tutorials", "padding=max_length", None),
        Rung("dynamic padding", "padding=longest", None),
    ]
    left_out: list[Reason] = []
    plan = Plan(micro_batching="partition", fused_optimizer=False, loader=IN_PROCESS)
    rungs.append(Rung("nearpeak: partition", "micro_batching=partition", plan))
    for name, change, obstacle in _improvements(model):
        if obstacle is None:
            plan = _changed(plan, change)
            rungs.append(Rung(name, ", ".join(f"{key}={value}" for key, value in change.items()), plan))
        else:
            left_out.append(obstacle)
    return rungs, left_out


def _changed(plan: Plan, change: dict[str, Any]) -> Plan:
    from dataclasses import replace

    return replace(plan, **change)


def _improvements(model: Module) -> Iterator[tuple[str, dict[str, Any], Reason | None]]:
    """Name, settings, and the reason if this machine or model cannot do it."""
    import torch

    from nearpeak.train.packed import PackedAdapter
    from nearpeak.train.precision import bf16_is_native

    adapter, reason = PackedAdapter.find(model)
    yield "+ no padding at all", {"micro_batching": "packed"}, None if adapter else reason
    yield "+ fused AdamW", {"fused_optimizer": True}, None
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    without = Reason("matmul=keep", "this build of torch has no oneDNN.")
    yield "+ oneDNN products", {"matmul": "onednn"}, None if has_onednn else without
    native, evidence = bf16_is_native(torch.device("cpu"))
    yield "+ bf16", {"precision": "bf16"}, None if native else Reason("precision=fp32", f"no bf16 rung: {evidence}.")
