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

    The caller's own torch state is put back: a user who draws numbers between steps gets an undisturbed stream.
    """
    cpu = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)


@contextlib.contextmanager
def untraced(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Forward and backward passes inside leave parameters, buffers, gradients, mode and random numbers as they were."""
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
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
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])


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
