"""The order of a Trainer's samples, kept so that an epoch that was left in the middle goes on in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from nearpeak.train.seeding import RandomSources

__all__ = ["KeptOrder", "keep_order", "leaf_of"]

FUNCTIONS_OF_THE_EPOCH = ("SeedableRandomSampler", "DistributedSampler", "BatchRebalanceSampler", "SequentialSampler")
"""Samplers whose order follows from a seed and the number of the epoch."""


class KeptOrder(torch.utils.data.Sampler[Any]):
    """A sampler that draws its order from generators: their state when the epoch began is part of a checkpoint."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._began: list[Any] | None = None
        self._again: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "sampler" not in vars(self):
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __iter__(self) -> Iterator[Any]:
        sources = RandomSources(self.sampler)
        if self._again is not None:
            sources.restore(self._again)
            self._again = None
        self._began = sources.state()
        # At once: what is drawn while the model draws its dropout could not be drawn again.
        return iter(list(self.sampler) if hasattr(self.sampler, "__len__") else self.sampler)

    def state(self) -> dict[str, Any]:
        """JSON of the generators as they were when this epoch began, and as they are."""
        now = RandomSources(self.sampler).state()
        return {"began": None if self._began is None else encode(self._began), "now": encode(now)}

    def restore(self, state: dict[str, Any], *, inside: bool) -> bool:
        """Go on inside an epoch in its order, or between epochs; False if the sampler holds other generators now."""
        sources = RandomSources(self.sampler)
        present, saved = sources.state(), decode(state["began"] if inside else state["now"])
        if saved is None or len(saved) != len(present):
            return False
        if inside:
            self._again = saved
        else:
            sources.restore([*present[:3], *saved[3:]])  # transformers restores the global ones itself
        return True


def leaf_of(loader: Any) -> tuple[Any, Any]:
    """(its holder, the sampler) below what shards and skips batches; (None, batch sampler) where it has none."""
    holder = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while hasattr(holder, "batch_sampler"):
        holder = holder.batch_sampler
    return (holder, holder.sampler) if hasattr(holder, "sampler") else (None, holder)


def keep_order(loader: Any) -> tuple[Any, str | None]:
    """Have a loader's order kept where that is needed; returns its sampler, and why it cannot be kept."""
    holder, sampler = leaf_of(loader)
    if any(base.__name__ in FUNCTIONS_OF_THE_EPOCH for base in type(sampler).__mro__) or isinstance(sampler, KeptOrder):
        return sampler, None
    if holder is None:
        return sampler, f"{type(sampler).__name__} makes whole batches; what it draws cannot be seen"
    holder.sampler = KeptOrder(sampler)
    return holder.sampler, None


def encode(value: Any) -> Any:
    """State of generators as JSON: integers, and at most one float, which JSON keeps to the last bit."""
    if isinstance(value, torch.Tensor):
        return {"torch": value.numpy().tobytes().hex()}
    if isinstance(value, np.ndarray):
        return {"numpy": [value.dtype.str, value.tolist()]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    return value.item() if isinstance(value, np.generic) else value


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "torch":
        return torch.frombuffer(bytearray.fromhex(content), dtype=torch.uint8)
    if kind == "numpy":
        return np.array(content[1], dtype=content[0])
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    return {key: decode(item) for key, item in content.items()}
