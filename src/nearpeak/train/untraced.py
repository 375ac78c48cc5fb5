"""Trying something on the real model without leaving a trace in its training."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import torch

__all__ = ["dropout_off", "random_state_kept", "seeded_step", "untraced"]


@contextlib.contextmanager
def random_state_kept(device: torch.device | None = None) -> Iterator[None]:
    """Whatever is drawn inside, the caller's random numbers go on as if nothing had been."""
    import numpy as np

    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device is not None and device.type == "cuda" else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if gpu is not None and device is not None:
            torch.cuda.set_rng_state(gpu, device)


@contextlib.contextmanager
def seeded_step(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of one optimizer step (dropout and the like), a function of the seed alone.

    The caller's own states are put back: a user who draws numbers between steps gets an undisturbed stream.
    """
    import numpy as np

    with random_state_kept(device):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # some models draw from numpy in their forward pass (SpecAugment)
        yield


@contextlib.contextmanager
def untraced(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Forward and backward passes inside leave parameters, buffers, gradients, mode and random numbers as they were."""
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = {id(b): b.detach().clone() for _, own in buffers for b in own.values() if b is not None}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    model.zero_grad(set_to_none=True)
    with random_state_kept(device):
        try:
            yield
        finally:
            for name, p in model.named_parameters():
                p.grad = gradients[name]
            for name, module in model.named_modules():
                module.training = modes[name]
            _put_buffers_back(buffers, values)


def _put_buffers_back(
    buffers: list[tuple[torch.nn.Module, dict[str, torch.Tensor | None]]], values: dict[int, torch.Tensor]
) -> None:
    """The same tensors with the same values, also where a forward pass registered or replaced some."""
    with torch.no_grad():
        for module, own in buffers:
            module._buffers.clear()
            module._buffers.update(own)
            for buffer in own.values():
                if buffer is not None:
                    buffer.copy_(values[id(buffer)])


@contextlib.contextmanager
def dropout_off(model: torch.nn.Module) -> Iterator[None]:
    """Every dropout rate at 0 while it is open, layers' own and those they hand to functional calls."""
    changed: list[tuple[torch.nn.Module, str, float]] = []
    for module in model.modules():
        for name, value in list(vars(module).items()):
            is_rate = name == "p" and isinstance(module, torch.nn.modules.dropout._DropoutNd)
            if (is_rate or "drop" in name) and isinstance(value, float) and 0 < value < 1:
                changed.append((module, name, value))
                setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)
