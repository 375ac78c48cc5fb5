"""The gradient of one window: micro-batches one after another, each weighed by what its mean loss is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nearpeak.errors import SettingError
from nearpeak.train.packed import PackedAdapter
from nearpeak.train.precision import autocast
from nearpeak.train.prepare import MicroBatch

__all__ = ["Execution", "accumulate"]

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Execution:
    """What every forward and backward of a run has in common."""

    model: torch.nn.Module
    loss: Loss
    device: torch.device
    precision: str = "fp32"
    adapter: PackedAdapter | None = None


def accumulate(
    execution: Execution,
    micro_batches: Sequence[MicroBatch],
    *,
    units: float,
    scale: float = 1.0,
    before_last: Callable[[], None] | None = None,
) -> list[torch.Tensor]:
    """Add Σ units_i/units · ∇mean_i to the gradients; returns the mean losses, on the device.

    `before_last` runs before the last backward: from there on gradients are final and may leave for other ranks.
    """
    losses = []
    for position, micro in enumerate(micro_batches):
        if before_last is not None and position == len(micro_batches) - 1:
            before_last()
        losses.append(_one(execution, micro, micro.units / units * scale if micro.units else 0.0))
    return losses


def _one(execution: Execution, micro: MicroBatch, weight: float) -> torch.Tensor:
    with _packing_of(execution, micro):
        with autocast(execution.precision, execution.device):
            mean = execution.loss(execution.model, micro.batch)
        _check_scalar(mean)
        if micro.units:
            (mean * weight).backward()
    # Without a single target token the mean is 0/0; it weighs nothing.
    return mean.detach() if micro.units else torch.zeros_like(mean.detach())


def _packing_of(execution: Execution, micro: MicroBatch) -> contextlib.AbstractContextManager[None]:
    if micro.packing is None:
        return contextlib.nullcontext()
    assert execution.adapter is not None
    return execution.adapter(micro.packing)


def _check_scalar(mean: Any) -> None:
    if not isinstance(mean, torch.Tensor) or mean.numel() != 1 or not mean.requires_grad:
        shape = tuple(mean.shape) if isinstance(mean, torch.Tensor) else type(mean).__name__
        raise SettingError(
            f"Job(loss=...) returned {shape}; it must return one number that gradients flow through: the mean over the "
            "micro-batch's samples (or target tokens)."
        )
