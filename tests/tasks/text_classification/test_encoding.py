"""Tokens of a split: the tokenizer's own, unpadded, and padded right when batched."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.errors import DataError
from nearpeak.tasks.text_classification.data import Split
from nearpeak.tasks.text_classification.encoding import PadBatch, encode_split
from nearpeak.tasks.text_classification.reading import Table

KEYS = ("input_ids", "attention_mask", "token_type_ids", "labels")
TEXTS = ["the apple", "a hammer beside the old saw", "pear"]


def split_of(texts: list[str], labels: list[Any], pairs: list[str] | None = None) -> Split:
    table = Table("t.csv", {"text": texts}, list(range(2, 2 + len(texts))))
    return Split("train", texts, pairs, labels, (table,), list(range(len(texts))))


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


def test_each_sample_is_what_the_tokenizer_makes_of_its_text(tokenizer: Any) -> None:
    encoded, cut = encode_split(split_of(TEXTS, [0, 1, 0], TEXTS[::-1]), tokenizer, 32, "single_label", KEYS)
    assert cut == 0
    for index, text in enumerate(TEXTS):
        expected = tokenizer(text, TEXTS[::-1][index])
        sample = encoded[index]
        assert {key: value.tolist() for key, value in sample.items() if key != "labels"} == dict(expected)
    assert [int(encoded[i]["labels"]) for i in range(3)] == [0, 1, 0]
    assert encoded[-1]["input_ids"].tolist() == encoded[2]["input_ids"].tolist()
    with pytest.raises(IndexError):
        encoded[3]


def test_long_texts_are_cut_and_counted(tokenizer: Any) -> None:
    encoded, cut = encode_split(split_of([*TEXTS, "pear " * 50], [0, 1, 0, 1]), tokenizer, 6, "single_label", KEYS)
    assert (cut, encoded.lengths.tolist()[3]) == (2, 6)


def test_a_tokenizer_that_does_not_tell_what_it_cut_is_asked_again(tokenizer: Any) -> None:
    def slow(*texts: Any, **settings: Any) -> dict[str, Any]:
        return dict(tokenizer(*texts, **settings))

    assert encode_split(split_of([*TEXTS, "pear " * 50], [0, 1, 0, 1]), slow, 6, "single_label", KEYS)[1] == 2


def test_only_what_the_model_takes(tokenizer: Any) -> None:
    encoded, _ = encode_split(
        split_of(TEXTS, [0.5, 1.5, 2.5]), tokenizer, 32, "regression", ("input_ids", "attention_mask")
    )
    assert set(encoded[0]) == {"input_ids", "attention_mask", "labels"}
    assert encoded[1]["labels"] == torch.tensor(1.5)


def test_a_text_without_tokens(tokenizer: Any) -> None:
    def none(texts: list[str], *rest: Any, **settings: Any) -> dict[str, Any]:
        return {"input_ids": [[5] if text == "pear" else [] for text in texts]}

    with pytest.raises(
        DataError, match=r"t.csv, row 1 \(line 2\): the tokenizer makes no token of the text 'the apple'"
    ):
        encode_split(split_of(TEXTS, [0, 1, 0]), none, 32, "single_label", KEYS)


def test_batches_are_padded_on_the_right_with_the_tokenizers_token(tokenizer: Any) -> None:
    encoded, _ = encode_split(split_of(TEXTS, [[1.0, 0.0]] * 3), tokenizer, 32, "multi_label", KEYS)
    pad = pickle.loads(pickle.dumps(PadBatch(7)))
    batch = pad([encoded[0], encoded[1]])
    short, long = encoded.lengths[:2]
    assert batch["input_ids"].shape == (2, long)
    assert batch["input_ids"][0, short:].tolist() == [7] * (long - short)
    assert batch["attention_mask"].sum(1).tolist() == [short, long]
    assert batch["token_type_ids"].sum() == 0
    assert (batch["labels"].shape, batch["labels"].dtype) == ((2, 2), torch.float32)
    assert batch["input_ids"].dtype == torch.long
