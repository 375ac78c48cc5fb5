"""Predictions for a split: no gradients, length-sorted batches, the work shared over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearpeak.errors import OutOfMemoryError
from nearpeak.tasks.text_classification.encoding import EncodedTexts

__all__ = ["Evaluator", "batches_by_length"]

MOST_TOKENS = {"cpu": 4_096, "cuda": 65_536}
MOST_SAMPLES = 256
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def batches_by_length(lengths: Sequence[int], most_tokens: int, most_samples: int = MOST_SAMPLES) -> list[list[int]]:
    """Indices in batches of like length, longest first (what does not fit shows at once)."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        room = batches and len(batches[-1]) < most_samples
        if room and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= most_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


@dataclass(frozen=True, slots=True)
class Evaluator:
    """How predictions are made: the model of a run, its device and precision, and this process's share."""

    collate: Callable[[list[Any]], dict[str, torch.Tensor]]
    device: torch.device
    precision: str = "fp32"
    rank: int = 0
    ranks: int = 1

    def predict(self, model: Any, data: EncodedTexts, advance: Callable[[int], None] = lambda samples: None) -> Any:
        """The logits of every sample, on every rank, as an array [samples, outputs]."""
        most_tokens = MOST_TOKENS.get(self.device.type, MOST_TOKENS["cuda"])
        batches = batches_by_length(data.lengths.tolist(), most_tokens)[self.rank :: self.ranks]
        found: list[tuple[list[int], Any]] = []
        with evaluating(model), torch.no_grad(), self._autocast():
            for rows in batches:
                found += self._batch(model, data, rows)
                advance(len(rows))
        return self._whole(found, len(data))

    def _batch(self, model: Any, data: EncodedTexts, rows: list[int]) -> list[tuple[list[int], Any]]:
        """One batch, in halves where it does not fit into memory."""
        batch = {key: value.to(self.device) for key, value in self.collate([data[row] for row in rows]).items()}
        batch.pop("labels")
        try:
            return [(rows, model(**batch).logits.float().cpu().numpy())]
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                tokens = int(data.lengths[rows[0]])
                raise OutOfMemoryError(
                    f"Evaluation: not even one text of {tokens} tokens fits on {self.device}. Lower data.max_length."
                ) from None
        torch.cuda.empty_cache()
        half = len(rows) // 2
        return self._batch(model, data, rows[:half]) + self._batch(model, data, rows[half:])

    def _autocast(self) -> Any:
        dtype = AUTOCAST.get(self.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _whole(self, found: list[tuple[list[int], Any]], samples: int) -> Any:
        """Every rank's predictions in the order of the samples."""
        everyone: list[Any] = [found]
        if self.ranks > 1:
            everyone = [None] * self.ranks
            torch.distributed.all_gather_object(everyone, found)
        parts = [part for share in everyone for part in share]
        logits = np.empty((samples, parts[0][1].shape[1]), dtype=np.float32)
        for rows, values in parts:
            logits[rows] = values
        return logits


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and back to what each module was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
