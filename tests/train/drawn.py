"""Recomputation with choices drawn at random, which must never matter to gradients."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import torch

from nearpeak.plan import BlockRecompute
from nearpeak.train.chosen import Recomputation

ON_CPU_IN_PLACE = ("empty_like", "bernoulli.p")
"""Dropout on CPUs fills and scales a mask in place."""


class Drawn:
    """Letters drawn at random; keeps a log, of which a plan can be made."""

    def __init__(self, letters: str, seed: int = 0) -> None:
        self.letters, self.seed = letters, seed
        self.log: dict[str, list[str]] = {}

    def begin(self) -> None:
        self._draw = random.Random(self.seed)
        self.log = {}

    def choices(self, block: str, operator: str, tensors: int) -> str:
        letters = "".join(self._draw.choice(self.letters) for _ in range(tensors))
        letters = "k" * tensors if operator in ON_CPU_IN_PLACE else letters
        self.log.setdefault(block, []).append(f"{operator}:{letters}")
        return letters

    def end(self) -> None:
        pass

    def plan(self) -> tuple[BlockRecompute, ...]:
        return tuple(BlockRecompute(modules=(block,), operators=tuple(each)) for block, each in self.log.items())


def blocks_of(model: torch.nn.Module) -> list[str]:
    return [path for path, _ in model.named_modules() if path.rpartition(".")[2].isdigit()]


@contextlib.contextmanager
def applied(model: torch.nn.Module, choices: Any) -> Iterator[None]:
    recomputation = Recomputation(model, blocks_of(model), choices)
    try:
        yield
    finally:
        recomputation.remove()
