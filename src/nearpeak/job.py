"""`Job`: what is learned. Nothing in it says how it is executed; no `Plan` can change it.

A job owns live objects (model, data, loss, optimizer factory); `JobRecord` is what of it goes to disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nearpeak.errors import SettingError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Job",
    "JobRecord",
    "Remainder",
    "StepCount",
    "Window",
    "count_steps",
    "describe_job",
    "job_steps",
    "sample_count",
]

Remainder = Literal["short", "carry", "drop"]
REMAINDERS: dict[str, str] = {
    "short": "the last window of each epoch is short",
    "carry": "the last window of each epoch is carried into the next",
    "drop": "the last, incomplete window of each epoch is dropped",
}


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one optimizer step: a run of positions of the job's sample stream."""

    index: int
    """Which optimizer step consumes it, from 0."""
    epoch: int
    """The epoch of its first sample."""
    indices: tuple[int, ...]
    """Dataset indices, in stream order."""
    epochs: tuple[int, ...]
    """The epoch of each sample (they differ only where a window is carried over an epoch's end)."""
    first_position: int
    """Position in the sample stream of the first sample."""


@dataclass(frozen=True, slots=True)
class StepCount:
    """How many optimizer steps a job makes, and the sentence that says why."""

    optimizer_steps: int
    steps_per_epoch: int | None
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is learned. Give exactly one of `optimizer_steps` and `epochs`.

    `loss(model, batch)` is the user's own: it returns the mean over the batch's samples, or over its target tokens
    when `normaliser="tokens"`. nearpeak weighs micro-batches so that the window's gradient is the mean over the window.
    """

    model: torch.nn.Module
    data: Any
    """A map-style dataset, `datasets.Dataset`, list (anything with len() and []), or an iterable dataset."""
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], Any]
    """Makes the optimizer from the model: ``lambda model: AdamW(model.parameters(), lr=3e-4)``."""
    global_batch: int
    """Samples of one optimizer step, over all ranks and micro-batches."""
    optimizer_steps: int | None = None
    epochs: float | None = None
    remainder: Remainder = "short"
    """What happens to an epoch's last, incomplete window; `short` is what Hugging Face's Trainer does."""
    schedule: Callable[[Any, int], Any] | None = None
    """Makes the learning-rate schedule from (optimizer, optimizer_steps); stepped once per optimizer step."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch from samples; None pads dictionaries of sequences and stacks everything else."""
    normaliser: Literal["samples", "tokens"] | Callable[[Any], int] = "samples"
    """What a window's mean is over: samples, target tokens (labels other than -100), or a count of your own."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    seed: int = 0
    clip_norm: float | None = None
    length: Callable[[Any], int] | None = None
    """Length of one sample, where nearpeak cannot see it (it knows `input_ids`, lists and 1-D tensors)."""

    def __post_init__(self) -> None:
        _check_positive("global_batch", self.global_batch)
        if (self.optimizer_steps is None) == (self.epochs is None):
            raise SettingError(
                f"Job(optimizer_steps={self.optimizer_steps}, epochs={self.epochs}): exactly one of the two says how "
                "long to train; give one and leave the other out."
            )
        if self.optimizer_steps is not None:
            _check_positive("optimizer_steps", self.optimizer_steps)
        if self.epochs is not None and not (math.isfinite(self.epochs) and self.epochs > 0):
            raise SettingError(f"Job(epochs={self.epochs!r}): epochs must be a finite number above 0.")
        _check_choice("remainder", self.remainder, tuple(REMAINDERS))
        _check_choice("order", self.order, ("shuffled", "sequential"))
        if isinstance(self.normaliser, str):
            _check_choice("normaliser", self.normaliser, ("samples", "tokens"))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise SettingError(f"Job(clip_norm={self.clip_norm!r}): must be above 0; None switches clipping off.")
        for name in ("loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise SettingError(f"Job({name}={getattr(self, name)!r}): must be a function. See help(nearpeak.Job).")


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingError(f"Job({name}={value!r}): must be a whole number of at least 1.")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingError(f"Job({name}={value!r}): must be one of {', '.join(allowed)}.")


def count_steps(samples: int, global_batch: int, epochs: float, remainder: Remainder) -> StepCount:
    """Convert epochs to optimizer steps, once; the formula is for the user's eyes.

    >>> count_steps(25_000, 32, 3, "short").optimizer_steps
    2346
    """
    per_epoch = _steps_per_epoch(samples, global_batch, remainder)
    if remainder == "carry":
        steps = max(1, math.ceil(round(epochs * samples) / global_batch))
    else:
        steps = max(1, math.ceil(epochs * per_epoch))
    formula = (
        f"{epochs:g} epochs × {samples:,} samples ÷ global batch {global_batch:,} = {steps:,} optimizer steps: "
        f"{REMAINDERS[remainder]}"
    )
    return StepCount(optimizer_steps=steps, steps_per_epoch=per_epoch, formula=formula)


def _steps_per_epoch(samples: int, global_batch: int, remainder: Remainder) -> int:
    if samples < 1:
        raise SettingError("The dataset has 0 samples; a job needs at least 1.")
    if remainder == "drop" and samples < global_batch:
        raise SettingError(
            f"remainder='drop' with {samples} samples and global_batch={global_batch} leaves no window at all: "
            "lower global_batch or use remainder='short'."
        )
    return samples // global_batch if remainder == "drop" else math.ceil(samples / global_batch)


def sample_count(data: Any) -> int | None:
    """Number of samples, or None for data that only iterates (its own length would say nothing about restarts)."""
    # torch's IterableDataset inherits a [] that raises; by name, so that torch need not be imported here.
    if not hasattr(data, "__getitem__") or "IterableDataset" in {kind.__name__ for kind in type(data).__mro__}:
        return None
    try:
        return len(data)
    except TypeError:
        return None


def job_steps(job: Job) -> StepCount:
    """The optimizer steps of a job, with the sentence that explains them."""
    samples = sample_count(job.data)
    if job.optimizer_steps is not None:
        per_epoch = None if samples is None else _steps_per_epoch(samples, job.global_batch, job.remainder)
        return StepCount(job.optimizer_steps, per_epoch, f"{job.optimizer_steps:,} optimizer steps, as set")
    if samples is None:
        raise SettingError(
            f"epochs={job.epochs} cannot be converted to optimizer steps: the data has no length. "
            "Give optimizer_steps instead."
        )
    assert job.epochs is not None
    return count_steps(samples, job.global_batch, job.epochs, job.remainder)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What of a job goes to disk (`job.json`): everything about what is learned that has a plain value."""

    samples: int | None
    global_batch: int
    optimizer_steps: int
    formula: str
    epochs: float | None
    remainder: Remainder
    order: str
    seed: int
    normaliser: str
    clip_norm: float | None
    model: str
    parameters: int
    optimizer: str
    schedule: str | None


def describe_job(job: Job) -> JobRecord:
    """The part of a job that can be written down."""
    count = job_steps(job)
    return JobRecord(
        samples=sample_count(job.data),
        global_batch=job.global_batch,
        optimizer_steps=count.optimizer_steps,
        formula=count.formula,
        epochs=job.epochs,
        remainder=job.remainder,
        order=job.order,
        seed=job.seed,
        normaliser=job.normaliser if isinstance(job.normaliser, str) else _name_of(job.normaliser),
        clip_norm=job.clip_norm,
        model=type(job.model).__name__,
        parameters=sum(parameter.numel() for parameter in job.model.parameters()),
        optimizer=_name_of(job.optimizer),
        schedule=None if job.schedule is None else _name_of(job.schedule),
    )


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
