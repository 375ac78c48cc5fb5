"""Ranks agree on what they do: a method is used where it holds on all of them, and chosen by the time of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from nearpeak.integrations._check import Trial

__all__ = ["agree", "everywhere"]

NAMES = ("packed", "partition", "bf16")


def everywhere(holds: bool, device: torch.device) -> bool:
    """Whether something holds on every rank; all of them call it."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return holds
    return bool(_least([float(holds)], device)[0])


def agree(trials: list[Trial], device: torch.device) -> list[Trial]:
    """Every rank calls it exactly once, whatever happened on it."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return trials
    by_name = {trial.name: trial for trial in trials}
    held = [float(name in by_name and by_name[name].holds) for name in NAMES]
    times_ms = [by_name[name].window_ms if name in by_name else 0.0 for name in NAMES]
    for name, everywhere, total_ms in zip(NAMES, _least(held, device), _sum(times_ms, device), strict=True):
        if name in by_name:
            by_name[name].window_ms = total_ms
            if by_name[name].holds and not everywhere:
                by_name[name].holds, by_name[name].because = False, "it does not hold on another rank"
    return trials


def _least(values: list[float], device: torch.device) -> list[float]:
    tensor = torch.tensor(values, device=device)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN)
    return tensor.tolist()


def _sum(values: list[float], device: torch.device) -> list[float]:
    tensor = torch.tensor(values, device=device)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.SUM)
    return tensor.tolist()
