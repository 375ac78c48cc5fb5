"""Texts to tokens, once, before training: unpadded, in flat arrays that worker processes share without copying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearpeak.errors import DataError
from nearpeak.tasks.text_classification.data import Split

__all__ = ["EncodedTexts", "PadBatch", "encode_split"]

TEXTS_AT_A_TIME = 1_000
LONGEST_BY_DEFAULT = 512


class EncodedTexts:
    """The tokens and labels of a split: `encoded[i]` is one sample's dictionary of tensors.

    A list of Python lists would take some 40 bytes a token and be copied page by page into every worker.
    """

    def __init__(self, ids: Any, types: Any | None, lengths: Sequence[int], labels: Any) -> None:
        self._ids = ids
        self._types = types
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index = int(index)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        end, length = int(self._ends[index]), int(self.lengths[index])
        tokens = slice(end - length, end)
        sample = {"input_ids": _long(self._ids[tokens]), "attention_mask": torch.ones(length, dtype=torch.long)}
        if self._types is not None:
            sample["token_type_ids"] = _long(self._types[tokens])
        return sample | {"labels": torch.as_tensor(self.labels[index])}


def _long(values: Any) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


@dataclass(frozen=True, slots=True)
class PadBatch:
    """Samples to a batch padded on the right with the tokenizer's own padding token; workers can pickle it."""

    pad_token: int
    pad_type: int = 0

    def __call__(self, samples: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        fills = {"input_ids": self.pad_token, "attention_mask": 0, "token_type_ids": self.pad_type}
        batch = {
            key: torch.nn.utils.rnn.pad_sequence([sample[key] for sample in samples], True, float(fill))
            for key, fill in fills.items()
            if key in samples[0]
        }
        return batch | {"labels": torch.stack([sample["labels"] for sample in samples])}


def encode_split(
    split: Split, tokenizer: Any, max_length: int, problem: str, keys: Sequence[str]
) -> tuple[EncodedTexts, int]:
    """Tokenise a split; returns it with the number of texts that were cut to `max_length`."""
    ids: list[Any] = []
    types: list[Any] = []
    cut = 0
    for begin in range(0, len(split), TEXTS_AT_A_TIME):
        encoded, cut_here = _tokenise(split, begin, tokenizer, max_length)
        ids += [np.asarray(row, dtype=np.int32) for row in encoded["input_ids"]]
        types += [np.asarray(row, dtype=np.uint8) for row in encoded.get("token_type_ids", ())]
        cut += cut_here
    lengths = [len(row) for row in ids]
    _refuse_no_tokens(split, lengths)
    with_types = "token_type_ids" in keys and types
    return EncodedTexts(
        np.concatenate(ids), np.concatenate(types) if with_types else None, lengths, _labels(split, problem)
    ), cut


def _tokenise(split: Split, begin: int, tokenizer: Any, max_length: int) -> tuple[Any, int]:
    rows = slice(begin, begin + TEXTS_AT_A_TIME)
    pairs = None if split.pairs is None else split.pairs[rows]
    encoded = tokenizer(
        split.texts[rows], pairs, truncation=True, max_length=max_length, padding=False, return_attention_mask=False
    )
    if getattr(encoded, "encodings", None):
        return encoded, sum(bool(row.overflowing) for row in encoded.encodings)
    # Only tokenizers of the `tokenizers` library say what they cut off; the others have to be asked again.
    full = sum(len(row) == max_length for row in encoded["input_ids"])
    return encoded, _count_longer(split, rows, tokenizer, max_length) if full else 0


def _count_longer(split: Split, rows: slice, tokenizer: Any, max_length: int) -> int:
    pairs = None if split.pairs is None else split.pairs[rows]
    whole = tokenizer(split.texts[rows], pairs, truncation=False, padding=False, verbose=False)
    return sum(len(row) > max_length for row in whole["input_ids"])


def _refuse_no_tokens(split: Split, lengths: Sequence[int]) -> None:
    if 0 in lengths:
        sample = list(lengths).index(0)
        raise DataError(
            f"{split.where(sample)}: the tokenizer makes no token of the text {split.texts[sample]!r}. Take the row "
            "out."
        )


def _labels(split: Split, problem: str) -> Any:
    return np.asarray(split.labels, dtype=np.int64 if problem == "single_label" else np.float32)
