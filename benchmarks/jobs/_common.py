"""What the small jobs share: a model, data, and the mean time of their steps, told on the last line of stdout."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn

WARM_UP = 5


def arguments(**defaults: int) -> argparse.Namespace:
    """--remedied runs the job as it should have been; --steps how many updates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--remedied", action="store_true")
    for name, value in {"steps": 60, **defaults}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()


class Clock:
    """Mean milliseconds of everything between two updates, from the end of the warm-up on."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def tick(self) -> None:
        """After an update and all that belongs to it."""
        self._ends.append(time.perf_counter())

    def tell(self) -> None:
        ends = self._ends[WARM_UP - 1 :]
        print(json.dumps({"mean_step_ms": 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1), "steps": len(self._ends)}))


def precision() -> torch.autocast:
    """bf16 where the processor has units for it: what a healthy job does."""
    units = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.autocast("cpu", torch.bfloat16, enabled=units)


def perceptron(width: int = 512, layers: int = 4, inputs: int = 256, classes: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [inputs, *[width] * layers]
    blocks: list[nn.Module] = []
    for before, after in pairwise(sizes):
        blocks += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Linear(width, classes))


class Encoder(nn.Module):
    """A small text classifier."""

    def __init__(self, vocabulary: int = 2000, width: int = 128, layers: int = 2, classes: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return self.head((hidden * mask).sum(1) / mask.sum(1))


class Vectors(torch.utils.data.Dataset[Any]):
    """Random vectors in memory."""

    def __init__(self, samples: int = 100_000, inputs: int = 256) -> None:
        generator = torch.Generator().manual_seed(1)
        self.values = torch.randn(samples, inputs, generator=generator)
        self.kinds = torch.randint(10, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.values[index], self.kinds[index]


def in_batches(data: Vectors, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut out of memory, without a loader: input that costs nothing."""
    for start in range(0, len(data) - size + 1, size):
        yield data.values[start : start + size], data.kinds[start : start + size]


def train(model: nn.Module, batches: Any, steps: int, optimizer: torch.optim.Optimizer | None = None) -> None:
    """The loop that most scripts have."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    criterion, clock, done = nn.CrossEntropyLoss(), Clock(), 0
    while done < steps:
        for values, kinds in batches:
            with precision():
                loss = criterion(model(values), kinds)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            done += 1
            if done == steps:
                break
    clock.tell()
