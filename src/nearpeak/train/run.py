"""`Run`: executes a plan of a job, one optimizer step per iteration.

    for step in nearpeak.Run(job, plan):
        print(step.index, step.loss)

Step k consumes exactly window k and makes exactly one update, whatever the plan, the number of ranks, or what went
wrong on the way (an fp16 overflow, a micro-batch too large for the device).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from nearpeak.errors import LossNotFiniteError, NearpeakError, OutOfMemoryError, SettingError
from nearpeak.job import Job, StepCount, Window, job_steps
from nearpeak.plan import Plan, load_plan
from nearpeak.reason import Reason
from nearpeak.train import choose
from nearpeak.train.accumulate import Execution, accumulate
from nearpeak.train.applied import applied
from nearpeak.train.device import choose_device, is_out_of_memory, prefetch, release_memory
from nearpeak.train.equivalence import couples_samples
from nearpeak.train.kernels import fuse_optimizer
from nearpeak.train.loader import IterableSource, MapSource, WindowLoader, WindowSource
from nearpeak.train.order import Origin, SampleOrder, order_of, steps_from, stream_end
from nearpeak.train.parallel import GradientReducer, Ranks, agree, join_ranks, same_start, statistics_type
from nearpeak.train.precision import LossScaler, all_finite, check_precision
from nearpeak.train.prepare import MicroBatch, PreparedWindow, split_micro_batch
from nearpeak.train.seeding import RandomSources, SampleRef, sample_seed
from nearpeak.train.state import Checkpoints, Keeper
from nearpeak.train.step import LateFigure, LossWatch, Step
from nearpeak.train.untraced import seeded_step
from nearpeak.train.windows import share
from nearpeak.train.workers import WorkerTuner

__all__ = ["Checkpoints", "Run", "Step"]

Figure = int | float | torch.Tensor
"""A number, on the host or (where reading it would make the host wait) on the device."""

STEP_STREAM = 0x57E9
"""Keeps the random numbers of steps (dropout) apart from those of samples."""
TRIED_WINDOWS = 2
OTHER_SAMPLES = 24


class Run:
    """A job under way. Iterating it trains; `len()` is the number of optimizer steps it will make."""

    def __init__(
        self,
        job: Job,
        plan: Plan | Literal["auto"] | str | Path = "auto",
        *,
        device: str | None = None,
        allow: tuple[str, ...] = (),
        checkpoints: Checkpoints | str | Path | None = None,
    ):
        """`plan` is a Plan, a file, or "auto": measure before step 0; `allow=("bf16",)` lets it change rounding.

        With `checkpoints` (a folder, or `Checkpoints`) the state is kept there, and a run goes on from what it finds.
        """
        self.job = job
        self.ranks = join_ranks("cuda" if torch.cuda.is_available() and device != "cpu" else "cpu")
        self.device = choose_device(device, self.ranks.local_rank)
        self.model = job.model.to(self.device)
        same_start(self.model, self.ranks)
        self._keeper = None if checkpoints is None else Keeper(_checkpoints(checkpoints), self.ranks)
        resumed = None if self._keeper is None else self._keeper.find(job)
        self.origin, self.next_step = (Origin(), 0) if resumed is None else (resumed.origin, resumed.step)
        self.count = _count(job, self.origin)
        self._source = _source_of(job, self.ranks, self.origin)
        settled = self._settle(resumed.plan if resumed is not None and plan == "auto" else plan, allow)
        self.plan, self._preparation = settled.plan, settled.preparation
        self.reasons: list[Reason] = list(settled.plan.reasons)
        self.optimizer = job.optimizer(self.model)
        self.reasons.append(fuse_optimizer(self.optimizer, self.plan.fused_optimizer, self.model))
        self.schedule = None if job.schedule is None else job.schedule(self.optimizer, self.optimizer_steps)
        self.scaler = LossScaler() if self.plan.precision == "fp16" else None
        self._execution = Execution(self.model, job.loss, self.device, self.plan.precision, settled.adapter)
        self._size_limit: int | None = None
        """Largest micro-batch since the device ran out of memory; None as long as it never did."""
        self._watch = LossWatch()
        self._reducer: GradientReducer | None = None
        self._tuner: WorkerTuner | None = None
        if self._keeper is not None and resumed is not None:
            self._keeper.restore(self, resumed)
            self.reasons += resumed.reasons

    @property
    def optimizer_steps(self) -> int:
        """How many updates the job makes."""
        return self.count.optimizer_steps

    @property
    def rank(self) -> int:
        """This process among those of the job."""
        return self.ranks.rank

    def __len__(self) -> int:
        return self.optimizer_steps

    def __iter__(self) -> Iterator[Step]:
        """Train from the next step to the last; leaving the loop early stops cleanly and iterating again goes on."""
        with contextlib.ExitStack() as stack:
            self._apply_plan(stack)
            loader = stack.enter_context(self._loader())
            kept = contextlib.nullcontext() if self._keeper is None else self._keeper.open(self)
            keeper = stack.enter_context(kept)
            for window in prefetch(iter(loader), self.device):
                step = self._step(window, loader)
                yield step
                if keeper is not None:
                    keeper.after_step(self, step.wall_s)
            self._watch.check(wait=True)
            if keeper is not None:
                keeper.finish(self)

    def save(self) -> None:
        """Save the state now, in the body of the loop, and return once it is durable. With ranks: on all of them."""
        if self._keeper is None:
            raise SettingError("Run.save(): the run keeps no state; give Run(checkpoints=FOLDER).")
        self._keeper.save_now(self)

    # -- setting up ----------------------------------------------------------------------------------------------------

    def _settle(self, plan: Plan | str | Path, allow: tuple[str, ...]) -> choose.Settled:
        """The first rank decides and tells the others, errors included: nobody waits for a rank that gave up."""
        with RandomSources(self.job.data).preserved():  # samples may draw, from generators of their own as well
            windows, others = self._trial_windows(), self._other_samples()
        trial = choose.Trial(self.job, self.device, windows, others, self.ranks.count)
        outcome: Plan | NearpeakError = Plan()
        if self.ranks.is_first:
            try:
                outcome = self._decide(trial, plan, allow)
            except NearpeakError as error:
                outcome = error
        decided = agree(outcome, self.ranks)
        if isinstance(decided, NearpeakError):
            raise decided
        assert isinstance(decided, Plan)
        return choose.carry_out(trial, decided)

    def _decide(self, trial: choose.Trial, plan: Plan | str | Path, allow: tuple[str, ...]) -> Plan:
        if plan == "auto":
            return choose.measure(trial, allow)
        given = plan if isinstance(plan, Plan) else load_plan(plan)
        check_precision(given.precision, self.device)
        return choose.settle(trial, given).plan

    def _trial_windows(self) -> list[tuple[list[Any], list[SampleRef]]]:
        """Whole windows to try choices on; none of a stream, which could not be read again."""
        order = order_of(self.job, self.origin)
        if order is None or not self.ranks.is_first:
            return []
        last = min(self.next_step + TRIED_WINDOWS, self.optimizer_steps)
        windows = [
            _refs(order.window(k, stream_end(self.job))) for k in range(self.next_step, max(last, self.next_step + 1))
        ]
        return [self._source.read(k, refs, self.job.seed) for k, refs in enumerate(windows, self.next_step)]

    def _other_samples(self) -> tuple[list[Any], list[SampleRef]]:
        """A few from all over the first epoch that is left; none of a stream."""
        order = order_of(self.job, self.origin)
        if order is None or not self.ranks.is_first:
            return [], []
        step = max(1, (self.optimizer_steps - self.next_step) // OTHER_SAMPLES)
        windows = range(self.next_step + TRIED_WINDOWS, self.optimizer_steps, step)[:OTHER_SAMPLES]
        refs = [_refs(order.window(k, stream_end(self.job)))[0] for k in windows]
        return self._source.read(self.next_step, refs, self.job.seed) if refs else ([], [])

    def _apply_plan(self, stack: contextlib.ExitStack) -> None:
        """Put the plan's kernels and policies on the model until the loop ends."""
        reasons = stack.enter_context(applied(self.model, self.plan))
        self.reasons += [reason for reason in reasons if reason not in self.reasons]
        if self.ranks.count > 1:
            self._reducer = GradientReducer(self.model.parameters(), statistics=4)
            stack.callback(self._reducer.close)

    def _loader(self) -> WindowLoader:
        loader = WindowLoader(
            self._source,
            self._preparation,
            first=self.next_step,
            last=self.optimizer_steps,
            settings=self.plan.loader,
            seed=self.job.seed,
        )
        self.reasons += loader.reasons
        if self.plan.loader.workers == "auto":
            self._tuner = WorkerTuner(most=loader.most_workers)
        return loader

    # -- one optimizer step --------------------------------------------------------------------------------------------

    def _step(self, window: PreparedWindow, loader: WindowLoader) -> Step:
        start = time.perf_counter()
        index = self.next_step
        window, losses, total_loss, _ = self._gradient_of_window(self._within_limit(window))
        loss = LateFigure(total_loss)
        self._watch.add(index, loss, losses, [micro.refs for micro in window.micro_batches])
        self._watch.check()
        norm = self._update()
        self.next_step += 1
        seconds, waited = time.perf_counter() - start, loader.last_timing.wait_ms / 1e3
        self._tune(loader, seconds)
        return Step(
            index=index,
            learning_rate=self._learning_rate,
            samples=self._window_samples(index, window),
            tokens=window.tokens,
            padded_tokens=window.padded_tokens,
            micro_batches=len(window.micro_batches),
            wall_s=seconds + waited,
            wait_s=waited,
            last=self.next_step == self.optimizer_steps,
            late_loss=loss,
            late_grad_norm=None if norm is None else LateFigure(norm),
        )

    def _gradient_of_window(
        self, window: PreparedWindow
    ) -> tuple[PreparedWindow, list[torch.Tensor], torch.Tensor, Figure]:
        """The window's mean gradient in `.grad`, whatever it takes to get it."""
        precision = self.plan.precision
        while True:
            try:
                return (window, *self._attempt(window, precision))
            except _Overflow:
                precision = self._after_overflow(precision)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                window = self._smaller(window, error)
            self.optimizer.zero_grad(set_to_none=True)

    def _attempt(self, window: PreparedWindow, precision: str) -> tuple[list[torch.Tensor], torch.Tensor, Figure]:
        scale = self.scaler.scale if self.scaler is not None and precision == "fp16" else 1.0
        execution = Execution(self.model, self.job.loss, self.device, precision, self._execution.adapter)
        units = self._units_before_reduction(window)
        before_last = None if self._reducer is None else self._reducer.arm
        with seeded_step(sample_seed(self.job.seed, self.next_step, self.rank, STEP_STREAM), self.device):
            losses = accumulate(execution, window.micro_batches, units=units, scale=scale, before_last=before_last)
        loss, total_units = self._reduce(losses, window)
        self._finish_gradient(units / total_units / scale, checked=self.scaler is not None and precision == "fp16")
        return losses, loss, total_units

    def _units_before_reduction(self, window: PreparedWindow) -> float:
        """What micro-batches are weighed by until the ranks' counts are known: the true count where it is already."""
        return float(max(1, window.units) if self.ranks.count == 1 else self.job.global_batch)

    def _reduce(self, losses: list[torch.Tensor], window: PreparedWindow) -> tuple[torch.Tensor, Figure]:
        """The window's mean loss and its units, over all ranks."""
        dtype = statistics_type(self.device)
        summed = torch.zeros((), dtype=dtype, device=self.device)
        for loss, micro in zip(losses, window.micro_batches, strict=True):
            summed += loss.to(dtype) * micro.units
        flags = (0.0, 0.0) if self._keeper is None else self._keeper.flags(self.next_step)
        if self._reducer is None:
            units, *agreed = window.units, *flags  # one rank agrees with itself, without asking the device
        else:
            # Filled, not assigned: writing a number into a tensor of a GPU would make the host wait for it.
            figures = [torch.full_like(summed, figure) for figure in (window.units, *flags)]
            summed, units, *agreed = self._reducer.finish(torch.stack([summed, *figures]))
        if self._keeper is not None:
            self._keeper.hear(*agreed)
        total = self._total_units(window, units)
        return summed / total, total

    def _total_units(self, window: PreparedWindow, counted: Figure) -> Figure:
        """What the window's mean is over; reading it from the device would make the host wait, so mostly it is not."""
        if self.ranks.count == 1:
            total: Figure = window.units
        elif self.job.normaliser == "samples":
            total = self._window_samples(self.next_step, window)
        else:
            total = float(counted) if self.device.type == "cpu" else counted
        if isinstance(total, int | float) and total == 0:
            raise LossNotFiniteError(
                f"Optimizer step {self.next_step}: its window has no target token at all: its mean loss is undefined. "
                "Check the labels (-100 is ignored).",
                step=self.next_step,
            )
        return total

    def _finish_gradient(self, factor: Figure, checked: bool) -> None:
        """Take out what the gradient was scaled by; with `checked`, refuse what overflowed."""
        present = [p.grad for p in self.model.parameters() if p.grad is not None]
        if checked and not bool(all_finite(present)):
            raise _Overflow
        if present and (isinstance(factor, torch.Tensor) or factor != 1.0):
            torch._foreach_mul_(present, factor)

    def _after_overflow(self, precision: str) -> str:
        """The precision to try the same window in again."""
        assert self.scaler is not None
        if self.scaler.reject():
            self.reasons.append(self.scaler.reason(self.next_step))
            return precision
        because = f"step {self.next_step} overflows fp16 at every loss scale: this window is run in fp32."
        self.reasons.append(Reason("precision=fp32", because, {"step": self.next_step}))
        self.scaler.scale = LossScaler().scale
        return "fp32"

    def _smaller(self, window: PreparedWindow, error: RuntimeError) -> PreparedWindow:
        """The same samples in smaller micro-batches, after the device ran out of memory."""
        release_memory(self.device)
        largest = max(window.micro_batches, key=_size)
        if self._reducer is not None and self._reducer.has_sent:
            raise OutOfMemoryError(
                "Out of memory while gradients were already on their way to other ranks. Set micro_batch_tokens "
                f"in the plan below {largest.padded_tokens} (or micro_batch below {largest.samples})."
            ) from error
        if self._reducer is not None:
            self._reducer.disarm()
        if largest.samples == 1 or couples_samples(self.model):
            raise OutOfMemoryError(_too_large(largest)) from error
        self._size_limit = _size(largest) // 2
        because = (
            f"step {self.next_step} did not fit with {largest.samples} samples at once; "
            "this window and those to come go on in smaller parts."
        )
        self.reasons.append(Reason("micro_batches=smaller", because, {"samples": largest.samples}))
        return self._within_limit(window)

    def _within_limit(self, window: PreparedWindow) -> PreparedWindow:
        """The window in parts that fit, as far as is known: later windows need not run out of memory to learn it."""
        if self._size_limit is None:
            return window
        halved = [half for micro in window.micro_batches for half in self._halves(micro, self._size_limit)]
        return PreparedWindow(tuple(halved))

    def _halves(self, micro: MicroBatch, limit: int) -> list[MicroBatch]:
        if _size(micro) <= limit or micro.samples == 1:
            return [micro]
        return [
            part for half in split_micro_batch(micro, self._preparation.units) for part in self._halves(half, limit)
        ]

    def _update(self) -> torch.Tensor | None:
        """Clip, step, schedule."""
        norm = None
        if self._keeper is not None:
            self._keeper.before_update()
        if self.job.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.clip_norm)
        self._learning_rate = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        if self.scaler is not None:
            self.scaler.accept()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _window_samples(self, index: int, window: PreparedWindow) -> int:
        order = order_of(self.job, self.origin)
        return window.samples if order is None else len(order.window(index, stream_end(self.job)).indices)

    def _tune(self, loader: WindowLoader, compute_s: float) -> None:
        """Follow the tuner's advice on the number of loader workers."""
        if self._tuner is None:
            return
        timing = loader.last_timing
        advice = self._tuner.observe(
            timing.fetch_ms, timing.wait_ms, compute_s * 1e3, workers=timing.workers, fetch_cpu_ms=timing.fetch_cpu_ms
        )
        if advice is not None:
            loader.set_workers(advice.workers)
            self.reasons.append(advice.reason)


class _Overflow(Exception):
    """fp16 gradients are not finite at this loss scale."""


def _checkpoints(given: Checkpoints | str | Path) -> Checkpoints:
    return given if isinstance(given, Checkpoints) else Checkpoints(folder=given)


def _count(job: Job, origin: Origin) -> StepCount:
    """The job's optimizer steps; counted anew where the global batch was changed on the way."""
    count, order = job_steps(job), order_of(job, origin)
    if origin == Origin() or order is None or job.epochs is None:
        return count
    steps = steps_from(job, order)
    formula = f"{origin.step:,} steps of another global batch, then {steps - origin.step:,} of {job.global_batch:,}"
    return StepCount(steps, count.steps_per_epoch, formula)


def _source_of(job: Job, ranks: Ranks, origin: Origin | None = None) -> WindowSource:
    """Where this rank's samples come from."""
    order = order_of(job, origin)
    if order is not None:
        return MapSource(job.data, _RankShare(job, order, ranks))
    return IterableSource(
        job.data,
        job.global_batch,
        lambda _, samples: share(None, len(samples), ranks.count, choose.UNMEASURED)[ranks.rank],
        remainder=job.remainder,
    )


class _RankShare:
    """This rank's samples of a window: by cost where lengths are at hand, else every n-th."""

    def __init__(self, job: Job, order: SampleOrder, ranks: Ranks):
        self._job, self._order, self._ranks, self._end = job, order, ranks, stream_end(job)
        self._lengths = _known_lengths(job)

    def __call__(self, index: int) -> list[SampleRef]:
        refs = _refs(self._order.window(index, self._end))
        if self._ranks.count == 1:
            return refs
        lengths = None if self._lengths is None else self._lengths([ref[0] for ref in refs])
        mine = share(lengths, len(refs), self._ranks.count, choose.UNMEASURED)[self._ranks.rank]
        return [refs[i] for i in mine]


def _known_lengths(job: Job) -> Callable[[list[int]], list[int] | None] | None:
    """Lengths by dataset index, only where they cost nothing: reading samples for them would read everything twice."""
    own = getattr(job.data, "lengths", None)
    if own is not None and hasattr(own, "__getitem__") and len(own) == len(job.data):
        return lambda indices: [int(own[i]) for i in indices]
    if type(job.data) in (list, tuple):
        measure = choose.preparation_of(job, "fixed").lengths
        return lambda indices: measure([job.data[i] for i in indices])
    return None


def _refs(window: Window) -> list[SampleRef]:
    places = enumerate(zip(window.indices, window.epochs, strict=True), window.first_position)
    return [(index, epoch, position) for position, (index, epoch) in places]


def _size(micro: MicroBatch) -> int:
    return micro.padded_tokens if micro.padded_tokens is not None else micro.samples


def _too_large(micro: MicroBatch) -> str:
    refs, tokens = micro.refs, micro.padded_tokens
    what = f"sample {refs[0][0]}" if len(refs) == 1 else f"the {len(refs)} samples that one layer couples"
    return (
        f"Out of memory with {what}{f' ({tokens} tokens)' if tokens else ''} alone. Shorten samples (max_length), use "
        "recompute='blocks', precision='bf16', a smaller model, or a device with more memory."
    )
