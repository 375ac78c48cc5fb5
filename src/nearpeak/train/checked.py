"""Does a choice leave the gradient as it is? Proved on a few real samples before anything is trained with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from nearpeak.errors import LossNotFiniteError, SettingError, UnsupportedError
from nearpeak.plan import Plan
from nearpeak.reason import Reason
from nearpeak.train.accumulate import accumulate
from nearpeak.train.applied import applied
from nearpeak.train.device import is_out_of_memory, move, release_memory
from nearpeak.train.equivalence import COSINE_LIMIT, Deviation, compare_gradients, couples_samples, gradients, holds
from nearpeak.train.packed import PackedAdapter, PackFormat
from nearpeak.train.prepare import PreparedWindow, preparation_of
from nearpeak.train.seeding import SampleRef
from nearpeak.train.step import loss_not_finite
from nearpeak.train.trial import CHECKED_SAMPLES, Samples, Settled, Trial
from nearpeak.train.untraced import dropout_off, untraced

__all__ = ["check", "deviation_when_split", "format_of", "weights_precision"]

HINT = (
    "Say what the mean is over: Job(normaliser='tokens') for target tokens, or a function that returns the sum of the "
    "weights of a batch; a loss that compares samples with each other cannot be split."
)

PRECISION_FACTOR = 4.0
"""In 16 bit, a candidate may turn the gradient by so many times what the precision itself turns it."""
CHECKED_SCALE = 2.0**10
"""Of the loss in fp16, so that small gradients are seen; far from where usual losses overflow."""

T = TypeVar("T")
Gradients = dict[str, torch.Tensor]


def deviation_when_split(trial: Trial, plan: Plan, adapter: PackedAdapter | None) -> Deviation | None:
    """The gradient of some samples in two micro-batches against that of one; None where there is only one sample."""
    make = partial(preparation_of, trial.job, "fixed", format=format_of(plan, adapter))

    def compare(samples: Samples, refs: list[SampleRef]) -> Deviation | None:
        if len(samples) < 2:
            return None
        whole, halves = make(micro_batch=len(samples)), make(micro_batch=-(-len(samples) // 2))
        with untraced(trial.job.model, trial.device), dropout_off(trial.job.model):
            reference = _gradient(trial, whole(samples, refs), None)
            return compare_gradients(reference, _gradient(trial, halves(samples, refs), None))

    return _on_what_fits(trial, compare)


def _on_what_fits(trial: Trial, compare: Callable[[Samples, list[SampleRef]], T]) -> T:
    """Compare on as many samples as the device holds at once: a check must not need more memory than the training."""
    most = CHECKED_SAMPLES
    while True:
        try:
            return compare(*trial.checked_samples(most))
        except RuntimeError as error:
            if not is_out_of_memory(error) or most <= 2:
                raise
        release_memory(trial.device)
        most //= 2


def check(trial: Trial, settled: Settled) -> tuple[str | None, Reason]:
    """Whether a choice gives the gradient of the same samples at once, in the user's batch: a refusal or None, why."""
    choice = settled.plan.micro_batching
    if choice == "fixed":
        return None, _check_fixed(trial, settled)
    try:
        found = _on_what_fits(trial, partial(_compare, trial, settled))
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, SettingError | LossNotFiniteError):
            raise
        refusal = f"{choice} does not run on this model: {type(error).__name__}: {error}"
        return refusal, Reason(f"micro_batching≠{choice}", refusal)
    deviation = found.deviation
    evidence = {"relative": deviation.relative, "cosine": deviation.cosine, "samples": found.samples}
    if found.holds(weights_precision(trial.job.model)):
        because = f"Same gradient as at once on {found.samples} samples ({found})."
        return None, Reason(f"micro_batching={choice}", because, evidence)
    refusal = f"{choice} changes the gradient of {found.samples} samples: {found}"
    return refusal, Reason(f"micro_batching≠{choice}", refusal, evidence)


@dataclass(frozen=True, slots=True)
class _Compared:
    deviation: Deviation
    rounding: float
    samples: int
    rounded: Deviation | None = None
    """In the plan's own precision, where that is not fp32."""
    rounded_at_once: Deviation | None = None
    """What that precision alone does to the gradient, the samples at once."""

    def holds(self, weights: str) -> bool:
        """By the precision of the weights, and in the plan's precision by what that one does to any gradient."""
        if not holds(self.deviation, weights, self.rounding):
            return False
        if self.rounded is None or self.rounded_at_once is None:
            return True
        own = PRECISION_FACTOR * (1 - self.rounded_at_once.cosine)
        return 1 - self.rounded.cosine <= max(1 - COSINE_LIMIT, own)

    def __str__(self) -> str:
        return f"{self.deviation}" + ("" if self.rounded is None else f"; in the plan's precision {self.rounded}")


def _compare(trial: Trial, settled: Settled, samples: Samples, refs: list[SampleRef]) -> _Compared:
    """The candidate, cut into several micro-batches and with the plan's kernels, against the samples at once."""
    model, count = trial.job.model, len(samples)
    whole = replace(settled.preparation, micro_batching="fixed", micro_batch=count)
    lengths = settled.preparation.lengths(samples) or [1]
    # Small limits, so that a check of few samples cuts them as a run cuts many.
    cut = replace(settled.preparation, micro_batch=-(-count // 3), micro_batch_tokens=-(-sum(lengths) // 2))
    plan = replace(settled.plan, precision="fp32")  # first of all without what the precision rounds
    with untraced(model, trial.device), dropout_off(model):
        reference = _gradient(trial, whole(samples, refs), None)
        with applied(model, plan):
            deviation = compare_gradients(reference, _gradient(trial, cut(samples, refs), settled.adapter))
        if holds(deviation, weights_precision(model)):
            windows = (cut(samples, refs), whole(samples, refs))
            return _Compared(deviation, 0.0, count, *_rounded(trial, settled, reference, *windows))
        reordered = _gradient(trial, whole(samples[::-1], refs[::-1]), None)
    return _Compared(deviation, compare_gradients(reference, reordered).relative, count)


def _rounded(
    trial: Trial, settled: Settled, reference: Gradients, cut: PreparedWindow, whole: PreparedWindow
) -> tuple[Deviation | None, Deviation | None]:
    """The candidate and the samples at once in the plan's precision: other precisions run other kernels."""
    precision = settled.plan.precision
    if precision == "fp32":
        return None, None
    with applied(trial.job.model, settled.plan):
        candidate = _gradient(trial, cut, settled.adapter, precision)
        at_once = _gradient(trial, whole, None, precision)
    if not all(bool(gradient.isfinite().all()) for each in (candidate, at_once) for gradient in each.values()):
        return None, None  # fp16 overflows: the run itself finds the scale, or takes fp32
    return compare_gradients(reference, candidate), compare_gradients(reference, at_once)


def _check_fixed(trial: Trial, settled: Settled) -> Reason:
    """Fixed micro-batches are the user's own; whether a window could be split otherwise matters to ranks and memory."""
    said = f"Micro-batches of {settled.plan.micro_batch}, in the order of the stream."
    splits = (settled.plan.micro_batch or 1) < trial.job.global_batch or trial.ranks > 1
    if not trial.windows or not splits or couples_samples(trial.job.model) is not None:
        return Reason("micro_batching=fixed", said)
    try:
        deviation = deviation_when_split(trial, settled.plan, settled.adapter)
    except SettingError:
        raise
    except Exception as error:  # noqa: BLE001  as above: a loss that cannot be split may well run as the user has it
        because = f"{said} Split in two they could not be compared ({type(error).__name__}: {error})."
        return Reason("micro_batching=fixed", because)
    if deviation is None or holds(deviation, weights_precision(trial.job.model)):
        return Reason("micro_batching=fixed", said)
    because = f"the loss is no mean over samples: split in two, the gradient differs ({deviation}). {HINT}"
    if trial.ranks > 1:
        raise UnsupportedError(f"Several ranks cannot share a window: {because}")
    return Reason("micro_batching=fixed", f"{said} Beware: {because}")


def weights_precision(model: torch.nn.Module) -> str:
    """The precision of the weights bounds how equal two gradients can be."""
    names = {torch.float64: "fp64", torch.float32: "fp32"}
    return names.get(next(model.parameters()).dtype, "bf16")


def _gradient(
    trial: Trial, window: PreparedWindow, adapter: PackedAdapter | None, precision: str = "fp32"
) -> Gradients:
    trial.job.model.train()
    trial.job.model.zero_grad(set_to_none=True)
    window = move(window, trial.device)
    scale = CHECKED_SCALE if precision == "fp16" else 1.0
    execution = trial.execution(precision, adapter)
    losses = accumulate(execution, window.micro_batches, units=max(1, window.units), scale=scale)
    if adapter is None and precision == "fp32" and not all(bool(loss.isfinite()) for loss in losses):
        # Nothing can be compared with it, and training would stop at it: say it now, with the samples.
        raise loss_not_finite(0, float("nan"), losses, [micro.refs for micro in window.micro_batches])
    return {name: gradient / scale for name, gradient in gradients(trial.job.model).items()}


def format_of(plan: Plan, adapter: PackedAdapter | None) -> PackFormat:
    """How samples are packed: as the model takes them, and with the shift of labels that the plan says."""
    own = adapter.format if adapter is not None else PackFormat()
    return own if plan.shifted_labels is None else replace(own, shifts_labels=plan.shifted_labels)
