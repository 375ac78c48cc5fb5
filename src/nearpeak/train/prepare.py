"""From the samples of a window to its micro-batches. Runs in the loader's workers, so everything here travels.

The result depends on the samples and the plan alone, never on timing: the same plan makes the same micro-batches again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nearpeak.errors import UnsupportedError
from nearpeak.job import Job
from nearpeak.train import windows
from nearpeak.train.batches import (
    Packing,
    count_target_tokens,
    default_collate,
    per_token_keys,
    rows_of,
    sample_length,
    take_rows,
)
from nearpeak.train.cost import UNMEASURED, CostModel
from nearpeak.train.device import map_tensors
from nearpeak.train.packed import PackFormat
from nearpeak.train.seeding import SampleRef, collate_seeded

__all__ = ["MicroBatch", "Preparation", "PreparedWindow", "split_micro_batch"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What the loss function gets at once, and how much it weighs in the window."""

    batch: Any
    refs: tuple[SampleRef, ...]
    units: int
    """Samples or target tokens that its mean loss is over."""
    tokens: int | None
    """Real tokens; None where samples have no length."""
    padded_tokens: int | None
    packing: Packing | None = None

    @property
    def samples(self) -> int:
        return len(self.refs)


@dataclass(frozen=True, slots=True)
class PreparedWindow:
    """This rank's share of a window, ready to run."""

    micro_batches: tuple[MicroBatch, ...]

    @property
    def samples(self) -> int:
        return sum(micro.samples for micro in self.micro_batches)

    @property
    def units(self) -> int:
        return sum(micro.units for micro in self.micro_batches)

    @property
    def tokens(self) -> int | None:
        return _sum(micro.tokens for micro in self.micro_batches)

    @property
    def padded_tokens(self) -> int | None:
        return _sum(micro.padded_tokens for micro in self.micro_batches)

    def pin_memory(self) -> PreparedWindow:
        """What torch's loader calls where a GPU is, off the training thread."""
        return map_tensors(torch.Tensor.pin_memory, self)


def _sum(counts: Any) -> int | None:
    known = list(counts)
    return None if None in known else sum(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Makes micro-batches as a plan says."""

    collate: Callable[[list[Any]], Any] | None
    normaliser: str | Callable[[Any], int]
    length: Callable[[Any], int] | None
    seed: int
    micro_batching: str
    """`fixed`, `partition` or `packed`; `auto` is resolved before."""
    micro_batch: int | None = None
    micro_batch_tokens: int | None = None
    cost: CostModel = UNMEASURED
    format: PackFormat = field(default_factory=PackFormat)

    def __call__(self, samples: list[Any], refs: Sequence[SampleRef]) -> PreparedWindow:
        lengths = self.lengths(samples)
        groups = self.groups(lengths, len(samples))
        return PreparedWindow(tuple(self._micro_batch(group, samples, refs, lengths) for group in groups))

    def lengths(self, samples: Sequence[Any]) -> list[int] | None:
        """Real lengths, or None as soon as one sample has none."""
        measure = self.length or sample_length
        lengths: list[int] = []
        for sample in samples:
            length = measure(sample)
            if length is None:
                return None
            lengths.append(length)
        return lengths

    def groups(self, lengths: list[int] | None, count: int) -> windows.Groups:
        """Which samples go together."""
        if lengths is None or self.micro_batching == "fixed":
            return windows.fixed(count, self.micro_batch or max(1, count))
        if self.micro_batching == "packed":
            rows = windows.pack(lengths, max_tokens=self.micro_batch_tokens)
            # Equally long neighbours share one attention call.
            return [sorted(row, key=lengths.__getitem__) for row in rows]
        return windows.partition(lengths, self.cost, max_samples=self.micro_batch, max_tokens=self.micro_batch_tokens)

    def _micro_batch(
        self, group: list[int], samples: list[Any], refs: Sequence[SampleRef], lengths: list[int] | None
    ) -> MicroBatch:
        chosen, chosen_refs = [samples[i] for i in group], [refs[i] for i in group]
        batch = collate_seeded(self.collate or default_collate, chosen, chosen_refs, self.seed)
        units = self.units(batch, len(group))
        packing = None
        if self.micro_batching == "packed":
            batch, packing = self.format.pack(batch)
        elif self.micro_batching == "partition" and _is_rows(batch):
            batch = take_rows(batch, range(len(group)))
        tokens = None if lengths is None else sum(lengths[i] for i in group)
        return MicroBatch(batch, tuple(chosen_refs), units, tokens, _padded_tokens(batch, tokens), packing)

    def units(self, batch: Any, samples: int) -> int:
        """What the batch's mean loss is over."""
        if callable(self.normaliser):
            return int(self.normaliser(batch))
        if self.normaliser == "samples":
            return samples
        return count_target_tokens(_without_first_labels(batch) if self.format.shifts_labels else batch)


def preparation_of(job: Job, micro_batching: str, **settings: Any) -> Preparation:
    """The preparation of a job under some settings of a plan."""
    return Preparation(
        collate=job.collate,
        normaliser=job.normaliser,
        length=job.length,
        seed=job.seed,
        micro_batching=micro_batching,
        **settings,
    )


def _without_first_labels(batch: Any) -> Any:
    """A model that predicts the next token has no use for the first token's label."""
    if "shift_labels" in batch:
        return batch
    return {**batch, "labels": batch["labels"][..., 1:]}


def _is_rows(batch: Any) -> bool:
    return isinstance(batch, Mapping) and bool(per_token_keys(batch))


def _padded_tokens(batch: Any, tokens: int | None) -> int | None:
    return batch["input_ids"].numel() if _is_rows(batch) else tokens


def split_micro_batch(micro: MicroBatch, units: Callable[[Any, int], int]) -> tuple[MicroBatch, MicroBatch]:
    """Two halves of a micro-batch that did not fit, with the same samples."""
    half = micro.samples // 2
    parts = ((0, half), (half, micro.samples))
    first, second = (_part(micro, start, end, units) for start, end in parts)
    return first, second


def _part(micro: MicroBatch, start: int, end: int, units: Callable[[Any, int], int]) -> MicroBatch:
    if micro.packing is None:
        batch = _slice(micro.batch, start, end, micro.samples)
        lengths = None
    else:
        batch, lengths = _slice_packed(micro.batch, micro.packing, start, end), micro.packing.lengths[start:end]
    packing = None if micro.packing is None else _part_of_packing(micro.packing, start, end)
    tokens = sum(lengths) if lengths else None
    padded = _padded_tokens(batch, tokens)
    return replace(
        micro,
        batch=batch,
        refs=micro.refs[start:end],
        units=units(batch, end - start),
        tokens=tokens if tokens is not None else _share_of(micro.tokens, end - start, micro.samples),
        padded_tokens=padded,
        packing=packing,
    )


def _share_of(tokens: int | None, samples: int, of: int) -> int | None:
    return None if tokens is None else tokens * samples // of


def _slice(value: Any, start: int, end: int, size: int) -> Any:
    if _is_rows(value) and rows_of(value) == size:
        return take_rows(value, range(start, end))
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 or len(value) != size:
            raise UnsupportedError(
                f"A batch tensor of shape {tuple(value.shape)} has no row per sample ({size}): a micro-batch that does "
                "not fit cannot be split. Set a smaller micro_batch in the plan."
            )
        return value[start:end]
    if isinstance(value, Mapping):
        return {key: _slice(item, start, end, size) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_slice(item, start, end, size) for item in value))
    if isinstance(value, list | tuple):
        if len(value) == size and not isinstance(value[0], torch.Tensor):
            return value[start:end]
        return type(value)(_slice(item, start, end, size) for item in value)
    return value


def _slice_packed(batch: Mapping[str, Any], packing: Packing, start: int, end: int) -> dict[str, Any]:
    first, last = sum(packing.lengths[:start]), sum(packing.lengths[:end])
    per_token = set(per_token_keys(batch))
    return {
        key: value[:, first:last] if key in per_token else _slice(value, start, end, packing.samples)
        for key, value in batch.items()
    }


def _part_of_packing(packing: Packing, start: int, end: int) -> Packing:
    bounds = packing.cu_seqlens[start : end + 1]
    return replace(packing, cu_seqlens=bounds - bounds[0], lengths=packing.lengths[start:end])
