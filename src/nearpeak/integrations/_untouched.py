"""A place to try things out in the middle of somebody's training, without a trace."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy
import torch

from nearpeak.integrations._obstacles import model_of
from nearpeak.train.equivalence import without_dropout

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["restore_dropout", "untouched"]

PLAIN = (bool, int, float, str, bytes, type(None))
CONTAINERS = (list, tuple, set, dict, deque, Counter, defaultdict, OrderedDict)
MOST_ITEMS = 10_000


@contextlib.contextmanager
def untouched(trainer: Trainer) -> Iterator[torch.nn.Module]:
    """Yields a copy of the model that the trainer takes for its own until the end; then everything is as before."""
    model, wrapped = model_of(trainer), trainer.model_wrapped
    with _random_state(trainer.args.device), _plain_attributes(trainer), _gradients(trainer), _no_logs(trainer):
        try:
            clone = without_dropout(model)
            clone.zero_grad(set_to_none=True)
            trainer.model = trainer.model_wrapped = clone
            yield clone
        finally:
            trainer.model, trainer.model_wrapped = model, wrapped


def restore_dropout(clone: torch.nn.Module, model: torch.nn.Module) -> None:
    """Give a copy its dropout back: it decides which kernels run, so times are taken with it."""
    for theirs, ours in zip(model.modules(), clone.modules(), strict=True):
        for name, value in vars(theirs).items():
            if isinstance(value, float) and vars(ours).get(name) != value:
                setattr(ours, name, value)


@contextlib.contextmanager
def _random_state(device: torch.device) -> Iterator[None]:
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)


@contextlib.contextmanager
def _plain_attributes(trainer: Trainer) -> Iterator[None]:
    """Counters and lists of metrics that a user's own compute_loss keeps on the trainer."""
    names = set(vars(trainer))
    before = {name: copy.deepcopy(value) for name, value in vars(trainer).items() if _is_plain(value)}
    try:
        yield
    finally:
        for name in set(vars(trainer)) - names:
            delattr(trainer, name)
        for name, value in before.items():
            setattr(trainer, name, value)


def _is_plain(value: Any) -> bool:
    """Numbers, text, small tensors without history, and containers of these: cheap to copy, safe to put back."""
    if isinstance(value, torch.Tensor):
        return value.numel() <= MOST_ITEMS and value.grad_fn is None and not isinstance(value, torch.nn.Parameter)
    if type(value) not in CONTAINERS:
        return type(value) in PLAIN
    members = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    return len(members) <= MOST_ITEMS and all(_is_plain(member) for member in members)


@contextlib.contextmanager
def _gradients(trainer: Trainer) -> Iterator[None]:
    """Gradients of everything that is optimised, also of what stands outside of the model."""
    parameters = _optimised(trainer)
    before = [(p.grad, None if p.grad is None else p.grad.detach().clone()) for p in parameters]
    try:
        yield
    finally:
        for parameter, (gradient, value) in zip(parameters, before, strict=True):
            # The same tensor, not only the same values: data parallelism keeps views of it.
            parameter.grad = gradient
            if gradient is not None and value is not None:
                gradient.detach().copy_(value)


def _optimised(trainer: Trainer) -> list[torch.nn.Parameter]:
    groups: list[dict[str, Any]] = getattr(trainer.optimizer, "param_groups", [])
    unique = {id(p): p for p in (*model_of(trainer).parameters(), *(p for group in groups for p in group["params"]))}
    return list(unique.values())


@contextlib.contextmanager
def _no_logs(trainer: Trainer) -> Iterator[None]:
    """What a user's own step logs must not reach their log twice."""
    shadowed = vars(trainer).get("log")
    trainer.log = lambda *args, **kwargs: None
    try:
        yield
    finally:
        if shadowed is None:
            del trainer.log
        else:
            trainer.log = shadowed
