"""What choices are tried on, and what a settled choice consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nearpeak.job import Job
from nearpeak.plan import Plan
from nearpeak.train.accumulate import Execution
from nearpeak.train.packed import PackedAdapter
from nearpeak.train.prepare import Preparation, preparation_of
from nearpeak.train.seeding import SampleRef

__all__ = ["CHECKED_SAMPLES", "Samples", "Settled", "Trial"]

CHECKED_SAMPLES = 12
"""Samples of the gradient check: enough for unequal lengths and several micro-batches, few enough to cost little."""

Samples = list[Any]


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan without open choices, and what executes it."""

    plan: Plan
    preparation: Preparation
    adapter: PackedAdapter | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What choices are tried on: the job's model on its device, and the samples of real windows."""

    job: Job
    device: torch.device
    windows: Sequence[tuple[Samples, list[SampleRef]]]
    """Samples and refs of a few windows; empty where reading them would use them up."""
    others: tuple[Samples, list[SampleRef]] = field(default_factory=lambda: ([], []))
    """Samples from all over the dataset: the first windows may have no long text, or no short one."""
    ranks: int = 1

    def execution(self, precision: str, adapter: PackedAdapter | None) -> Execution:
        return Execution(self.job.model, self.job.loss, self.device, precision, adapter)

    def checked_samples(self, most: int = CHECKED_SAMPLES) -> tuple[Samples, list[SampleRef]]:
        """A few samples from the shortest to the longest that are at hand."""
        samples, refs = ([*w, *o] for w, o in zip(self.windows[0], self.others, strict=True))
        lengths = preparation_of(self.job, "fixed").lengths(samples) or [0] * len(samples)
        by_length = sorted(range(len(samples)), key=lengths.__getitem__)
        count = min(most, len(by_length))
        spread = {by_length[round(i * (len(by_length) - 1) / max(1, count - 1))] for i in range(count)}
        chosen = sorted(spread)
        return [samples[i] for i in chosen], [refs[i] for i in chosen]
