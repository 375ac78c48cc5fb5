"""Cutting, regrouping and packing batches changes no real token and no label."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import texts

from nearpeak.errors import DataError
from nearpeak.train.batches import (
    concat_batches,
    count_target_tokens,
    default_collate,
    pack_rows,
    per_token_keys,
    real_lengths,
    sample_length,
    take_rows,
)


def batch_of(lengths: list[int], width: int | None = None) -> dict[str, torch.Tensor]:
    batch = default_collate(
        [{"input_ids": list(range(5, 5 + n)), "attention_mask": [1] * n, "labels": n % 3} for n in lengths]
    )
    extra = 0 if width is None else width - batch["input_ids"].shape[1]
    return {k: torch.nn.functional.pad(v, (0, extra)) if v.dim() == 2 else v for k, v in batch.items()}


lengths_lists = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@given(lengths=lengths_lists, data=st.data())
def test_rows_keep_their_tokens_and_lose_their_padding(lengths, data):
    batch = batch_of(lengths, 20)
    rows = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(1, len(lengths)))]
    taken = take_rows(batch, rows)
    assert real_lengths(taken) == [lengths[i] for i in rows]
    assert taken["input_ids"].shape[1] == max(lengths[i] for i in rows)
    for place, row in enumerate(rows):
        n = lengths[row]
        assert taken["input_ids"][place, :n].tolist() == batch["input_ids"][row, :n].tolist()
        assert taken["labels"][place] == batch["labels"][row]


@given(parts=st.lists(lengths_lists, min_size=1, max_size=4))
def test_concatenation_keeps_every_row(parts):
    whole = concat_batches([batch_of(part) for part in parts])
    flat = [n for part in parts for n in part]
    assert real_lengths(whole) == flat
    assert whole["labels"].tolist() == [n % 3 for n in flat]


def test_concatenation_pads_with_the_users_own_pad_token():
    first = batch_of([2, 4])
    first["input_ids"][first["attention_mask"] == 0] = 77
    second = batch_of([6])
    assert concat_batches([first, second])["input_ids"][1, 4:].tolist() == [77, 77]


@given(lengths=lengths_lists)
def test_packing_is_every_real_token_in_order(lengths):
    batch = batch_of(lengths, 15)
    packed, packing = pack_rows(batch)
    expected = [token for n in lengths for token in range(5, 5 + n)]
    assert packed["input_ids"].tolist() == [expected]
    assert packed["position_ids"].tolist() == [[i for n in lengths for i in range(n)]]
    assert packing.cu_seqlens.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert packing.pooled and packing.samples == len(lengths)
    assert packed["labels"].tolist() == batch["labels"].tolist()
    assert "attention_mask" not in packed


def test_token_labels_are_packed_and_padded_with_the_ignored_label():
    samples = [{"input_ids": [5, 6], "labels": [1, 2]}, {"input_ids": [7, 8, 9], "labels": [0, -100, 1]}]
    batch = default_collate(samples)
    assert batch["labels"].tolist() == [[1, 2, -100], [0, -100, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert count_target_tokens(batch) == 4
    packed, packing = pack_rows(batch)
    assert packed["labels"].tolist() == [[1, 2, 0, -100, 1]]
    assert not packing.pooled


def test_multi_hot_labels_as_wide_as_the_text_are_not_tokens():
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.long), "labels": torch.zeros(2, 4)}
    assert per_token_keys(batch) == ("input_ids",)


def test_a_row_without_tokens_is_named():
    batch = batch_of([3, 2])
    batch["attention_mask"][1] = 0
    with pytest.raises(DataError, match="Row 1"):
        pack_rows(batch)


def test_left_padding_is_not_cut():
    batch = {"input_ids": torch.tensor([[0, 0, 5]]), "attention_mask": torch.tensor([[0, 0, 1]])}
    assert take_rows(batch, [0])["input_ids"].shape == (1, 3)


def test_what_cannot_be_merged_is_named():
    left, right = ({"input_ids": torch.ones(1, 2), "task": task} for task in ("a", "b"))
    with pytest.raises(DataError, match="task"):
        concat_batches([left, right])


def test_sample_lengths():
    assert sample_length({"input_ids": [1, 2, 3, 0], "attention_mask": [1, 1, 1, 0]}) == 3
    assert sample_length({"input_ids": [1, 2]}) == 2
    assert sample_length(torch.zeros(7)) == 7
    assert sample_length(torch.zeros(3, 4)) is None
    assert sample_length((1, 2)) is None


def test_samples_that_are_not_text_are_stacked_as_torch_does():
    values, classes = default_collate([(torch.ones(2), 1), (torch.zeros(2), 0)])
    assert values.shape == (2, 2) and classes.tolist() == [1, 0]
    assert real_lengths(default_collate(texts(3))) == [len(sample["input_ids"]) for sample in texts(3)]
