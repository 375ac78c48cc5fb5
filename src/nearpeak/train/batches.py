"""Batches as dictionaries of tensors (what Hugging Face collators make): cut, regroup, trim and pack them.

A tensor is *per token* when its second dimension is that of `input_ids` and it is not a float label (a multi-hot label
row may be as wide as the text is long). Everything else with a row per sample is *per sample*; the rest is passed
through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from nearpeak.errors import DataError

__all__ = [
    "Packing",
    "concat_batches",
    "count_target_tokens",
    "default_collate",
    "pack_rows",
    "per_token_keys",
    "real_lengths",
    "sample_length",
    "take_rows",
    "trim",
]

IGNORED_LABEL = -100
PAD_VALUES = {"labels": IGNORED_LABEL, "shift_labels": IGNORED_LABEL, "special_tokens_mask": 1}
"""What padding holds, by key; 0 where a key is not listed and no batch shows its own."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the samples of a packed row begin and end."""

    cu_seqlens: torch.Tensor
    """Cumulative lengths, int32, one more than samples: sample i is tokens [cu[i], cu[i+1]). On the batch's device."""
    lengths: tuple[int, ...]
    """The same on the host, where reading them does not wait."""
    pooled: bool = True
    """Whether the loss wants one prediction a sample (class labels) or one a token (token labels)."""

    @property
    def samples(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)


def sample_length(sample: Any) -> int | None:
    """Real length of one sample: its attention mask's sum, else its tokens, else its only dimension."""
    if isinstance(sample, Mapping):
        mask = sample.get("attention_mask")
        if mask is not None:
            return int(sum(mask))
        tokens = sample.get("input_ids")
        return None if tokens is None else len(tokens)
    if isinstance(sample, torch.Tensor):
        return len(sample) if sample.dim() == 1 else None
    return len(sample) if isinstance(sample, list) else None


def rows_of(batch: Mapping[str, Any]) -> int:
    """Samples in a batch."""
    for key in ("input_ids", "labels"):
        if isinstance(batch.get(key), torch.Tensor):
            return len(batch[key])
    return next(len(value) for value in batch.values() if isinstance(value, torch.Tensor) and value.dim() > 0)


def per_token_keys(batch: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys whose tensors have one column per token."""
    tokens = batch.get("input_ids")
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2:
        return ()
    return tuple(key for key, value in batch.items() if _is_per_token(key, value, tokens))


def _is_per_token(key: str, value: Any, tokens: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.shape[:2] != tokens.shape:
        return False
    return not (key in ("labels", "label") and value.is_floating_point())


def real_lengths(batch: Mapping[str, Any]) -> list[int] | None:
    """Real tokens of each row, from the attention mask; None where the mask does not tell."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return None
    return mask.ne(0).sum(1).tolist()


def pads_on_the_right(batch: Mapping[str, Any]) -> bool:
    """Whether every row's real tokens are its first ones, so that columns can be cut without moving a position."""
    mask = batch["attention_mask"].ne(0)
    columns = torch.arange(mask.shape[1], device=mask.device)
    return bool((mask == (columns < mask.sum(1, keepdim=True))).all())


def trim(batch: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The batch without the columns beyond `length`."""
    per_token = set(per_token_keys(batch))
    return {key: value[:, :length] if key in per_token else value for key, value in batch.items()}


def take_rows(batch: Mapping[str, Any], rows: Sequence[int] | torch.Tensor) -> dict[str, Any]:
    """Some rows of a batch, trimmed to the longest real length among them where padding stands on the right."""
    size, index = rows_of(batch), torch.as_tensor(rows)
    taken = {key: _select(value, index, size) for key, value in batch.items()}
    lengths = real_lengths(taken)
    if lengths is None or not pads_on_the_right(taken):
        return taken
    return trim(taken, max(1, max(lengths)))


def _select(value: Any, index: torch.Tensor, size: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[index.to(value.device)] if value.dim() and len(value) == size else value
    if isinstance(value, list | tuple) and len(value) == size:
        return type(value)(value[i] for i in index.tolist())
    return value


def concat_batches(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of several batches under each other, padded on the right to one width."""
    if len(batches) == 1:
        return dict(batches[0])
    keys = set(batches[0])
    if any(set(batch) != keys for batch in batches):
        raise DataError(f"Batches of one window hold different keys: {[sorted(batch) for batch in batches]}.")
    widths = [batch["input_ids"].shape[1] if per_token_keys(batch) else 0 for batch in batches]
    return {key: _concat(key, batches, max(widths)) for key in batches[0]}


def _concat(key: str, batches: Sequence[Mapping[str, Any]], width: int) -> Any:
    values = [batch[key] for batch in batches]
    if isinstance(values[0], list | tuple):
        return type(values[0])(item for value in values for item in value)
    if not isinstance(values[0], torch.Tensor) or values[0].dim() == 0:
        return _same_everywhere(key, values)
    if all(key in per_token_keys(batch) for batch in batches):
        fill = _pad_value(key, batches)
        values = [functional.pad(value, _right_of(value, width), value=fill) for value in values]
    return torch.cat(values)


def _right_of(value: torch.Tensor, width: int) -> tuple[int, ...]:
    """torch's pad counts from the last dimension; the tokens are the second."""
    return (0, 0) * (value.dim() - 2) + (0, width - value.shape[1])


def _same_everywhere(key: str, values: list[Any]) -> Any:
    if all(bool(value == values[0]) for value in values[1:]):
        return values[0]
    raise DataError(f"{key!r} has no row per sample and differs between batches of one window: it cannot be merged.")


def _pad_value(key: str, batches: Sequence[Mapping[str, Any]]) -> int:
    """What stands in the padding already, so that the user's own pad token is kept."""
    if key in PAD_VALUES:
        return PAD_VALUES[key]
    for batch in batches:
        mask = batch.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.shape == batch[key].shape and not mask.all():
            return int(batch[key][mask == 0][0].item())
    return 0


def pack_rows(batch: Mapping[str, Any]) -> tuple[dict[str, Any], Packing]:
    """[n, L] with padding → [1, total] without, with positions that restart at every sample.

    Per-sample tensors (class labels) keep their row per sample; the attention mask has nothing left to say and goes.
    """
    lengths = real_lengths(batch)
    if lengths is None:
        lengths = [batch["input_ids"].shape[1]] * len(batch["input_ids"])
    if not min(lengths):
        raise DataError(f"Row {lengths.index(0)} of the batch has no real token (its attention mask is all zeros).")
    per_token = per_token_keys(batch)
    keep = batch["attention_mask"] if "attention_mask" in batch else torch.ones_like(batch["input_ids"])
    columns = keep.flatten().nonzero().squeeze(1)
    packed = {k: _packed(k, v, columns, per_token) for k, v in batch.items() if k != "attention_mask"}
    packed.setdefault("position_ids", torch.cat([torch.arange(n) for n in lengths])[None].to(columns.device))
    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return packed, Packing(cu_seqlens=bounds, lengths=tuple(lengths), pooled="labels" not in per_token)


def _packed(key: str, value: Any, columns: torch.Tensor, per_token: Sequence[str]) -> Any:
    if key not in per_token:
        return value
    return value.flatten(0, 1).index_select(0, columns)[None]


def count_target_tokens(batch: Mapping[str, Any]) -> int:
    """Tokens that a token-level loss counts: labels other than -100."""
    labels = batch.get("shift_labels", batch.get("labels"))
    if not isinstance(labels, torch.Tensor):
        raise DataError(
            "normaliser='tokens' needs 'labels' in the batch; give Job(normaliser=...) a counting function."
        )
    return int(labels.ne(IGNORED_LABEL).sum())


def default_collate(samples: list[Any], pad_values: Mapping[str, int] | None = None) -> Any:
    """Dictionaries of sequences are padded on the right to the longest; anything else is stacked as torch does."""
    if not samples or not isinstance(samples[0], Mapping) or "input_ids" not in samples[0]:
        return torch.utils.data.default_collate(samples)
    fill = {**PAD_VALUES, **(pad_values or {})}
    lengths = [len(sample["input_ids"]) for sample in samples]
    batch = {key: _collate_key(key, samples, lengths, fill.get(key, 0)) for key in samples[0]}
    if "attention_mask" not in batch and len(set(lengths)) > 1:
        batch["attention_mask"] = _length_mask(lengths)
    return batch


def _collate_key(key: str, samples: list[Any], lengths: list[int], fill: int) -> torch.Tensor:
    values = [torch.as_tensor(sample[key]) for sample in samples]
    if all(v.dim() >= 1 and len(v) == n for v, n in zip(values, lengths, strict=True)) and not _is_float_label(
        key, values
    ):
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)
    return torch.stack(values)


def _is_float_label(key: str, values: list[torch.Tensor]) -> bool:
    return key in ("labels", "label") and values[0].is_floating_point()


def _length_mask(lengths: list[int]) -> torch.Tensor:
    return (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
