"""How many samples and tokens a batch has, and how many of them are padding. Reads host memory only: never a device."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["BatchMeter", "BatchSize", "count_samples", "measure_batch"]

_NEITHER = frozenset({str, bytes, int, float, bool, type(None)})
DEEPEST = 3
"""Levels of nesting that are looked into."""
LARGEST_MASK = 1 << 20
"""Numbers that are counted in every step: beyond it counting takes milliseconds."""
SHORTEST_ROW = 8
"""Integers in rows at least this long are taken for tokens."""


ALWAYS_COUNTED = 16
"""First steps: a short run has all of them."""
COUNTED_TOGETHER = 2
"""Steps in a row: a loader that reads ahead brings a step's first batch while the one before it runs."""
TIMES_AS_LONG = 1000
"""What lies between two counts, so that counting takes at most a thousandth of the training."""


class BatchSize(NamedTuple):
    """What is unknown is None."""

    samples: int | None = None
    tokens: int | None = None
    """Real ones."""
    padded_tokens: int | None = None
    """All that are computed, padding included."""


def measure_batch(batch: Any) -> BatchSize:
    """Of whatever a loader yields: a mapping, a sequence, a tensor, nested."""
    named = _named_tensors(batch, DEEPEST)
    mask = named.get("attention_mask")
    ids = named.get("input_ids")
    if mask is not None and mask.ndim == 2:
        return BatchSize(mask.shape[0], _count_nonzero(mask), mask.numel())
    if ids is not None and ids.ndim == 2:
        return BatchSize(ids.shape[0], _count_unpadded(ids), ids.numel())
    tensors = _tensors(batch, DEEPEST)
    if not tensors:
        return BatchSize()
    samples = tensors[0].shape[0] if tensors[0].ndim else None
    rows = next((t for t in tensors if _looks_like_tokens(t, samples)), None)
    return BatchSize(samples) if rows is None else BatchSize(samples, _count_unpadded(rows), rows.numel())


def count_samples(batch: Any) -> int | None:
    """As `measure_batch` does, for the forms that most batches have; None for others."""
    rows = batch[0] if _is_sequence(batch) and batch else batch
    if _is_mapping(rows):
        mask = rows.get("attention_mask")
        rows = rows.get("input_ids") if mask is None else mask
    return rows.shape[0] if _is_tensor(rows) and rows.ndim else None


class BatchMeter:
    """Measures batches as often as it may: counting tokens is what costs the training most of all that watching does,
    and a batch that is not counted is unknown, not guessed."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._last_counted = ALWAYS_COUNTED - 1
        self._spent_ns = self._due_ns = 0

    def measure(self, batch: Any, step: int) -> BatchSize:
        """`step`: the number of steps that have ended."""
        if step > self._last_counted:
            if self._now() < self._due_ns and (samples := count_samples(batch)) is not None:
                return BatchSize(samples)
            self._last_counted, self._spent_ns = step + COUNTED_TOGETHER - 1, 0
        began_ns = self._now()
        size = measure_batch(batch)
        ended_ns = self._now()
        self._spent_ns += ended_ns - began_ns
        self._due_ns = ended_ns + TIMES_AS_LONG * self._spent_ns
        return size


def _named_tensors(batch: Any, depth: int) -> dict[str, Any]:
    """The tensors of the first mapping with token names."""
    if _is_sequence(batch):
        for part in batch[:4] if depth else ():
            if not _is_tensor(part) and (found := _named_tensors(part, depth - 1)):
                return found
        return {}
    if _is_mapping(batch):
        return {name: value for name, value in batch.items() if isinstance(name, str) and _is_tensor(value)}
    return {}


def _tensors(batch: Any, depth: int) -> list[Any]:
    if _is_tensor(batch):
        return [batch]
    if not depth:
        return []
    if _is_sequence(batch):
        parts = batch[:8]
    elif _is_mapping(batch):
        parts = list(batch.values())
    else:
        return []
    return [tensor for part in parts for tensor in _tensors(part, depth - 1)]


def _is_sequence(value: Any) -> bool:
    """Asked by type where that answers: this runs in every step."""
    kind = type(value)
    return kind is tuple or kind is list or (kind not in _NEITHER and isinstance(value, tuple | list))


def _is_mapping(value: Any) -> bool:
    kind = type(value)
    return kind is dict or (kind not in _NEITHER and isinstance(value, Mapping))


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Tensor


def _looks_like_tokens(tensor: Any, samples: int | None) -> bool:
    """Whole numbers in long rows, as many rows as samples; images of whole numbers have more dimensions."""
    if tensor.ndim != 2 or tensor.shape[0] != samples or tensor.shape[1] < SHORTEST_ROW:
        return False
    return str(tensor.dtype) in ("torch.int64", "torch.int32")


def _count_nonzero(mask: Any) -> int | None:
    numbers = _to_numpy(mask)
    return None if numbers is None else int(sys.modules["numpy"].count_nonzero(numbers))


def _count_unpadded(ids: Any) -> int | None:
    """Without a mask padding is what rows end or begin with again and again; None where no row tells."""
    rows = _to_numpy(ids)
    if rows is None or rows.shape[0] < 2 or rows.shape[1] < 2:
        return None
    padding = max(_count_repeated(rows), _count_repeated(rows[:, ::-1]))
    return rows.size - padding if padding else None


def _count_repeated(rows: Any) -> int:
    """How many tokens at the rows' ends repeat one token that some row has there at least twice."""
    repeats = rows[:, -1] == rows[:, -2]
    if not repeats.any():
        return 0
    differs = rows[:, ::-1] != rows[repeats.argmax(), -1]
    return int(sys.modules["numpy"].where(differs.any(axis=1), differs.argmax(axis=1), rows.shape[1]).sum())


def _to_numpy(tensor: Any) -> Any:
    """A view of host memory; None where the tensor is elsewhere, or too large to count in passing."""
    if "numpy" not in sys.modules or not tensor.is_cpu or tensor.numel() > LARGEST_MASK:
        return None
    return tensor.detach().numpy()
