"""Predictions do not depend on how they are batched, and leave the model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import OutOfMemoryError
from nearpeak.tasks.text_classification import evaluating
from nearpeak.tasks.text_classification.encoding import EncodedTexts, PadBatch
from nearpeak.tasks.text_classification.evaluating import Evaluator, batches_by_length

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200), st.integers(1, 10))
def test_batches_hold_every_sample_once_within_the_bounds(lengths: list[int], tokens: int, samples: int) -> None:
    batches = batches_by_length(lengths, tokens, samples)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or (len(batch) <= samples and len(batch) * max(lengths[i] for i in batch) <= tokens)
    flat = [lengths[index] for batch in batches for index in batch]
    assert flat == sorted(lengths, reverse=True)


@pytest.fixture
def data() -> EncodedTexts:
    source = np.random.default_rng(0)
    lengths = source.integers(2, 30, 40).tolist()
    return EncodedTexts(
        source.integers(5, 90, sum(lengths)).astype(np.int32), None, lengths, np.zeros(40, dtype=np.int64)
    )


@pytest.fixture
def model(tiny_model: Path) -> Any:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(tiny_model)


def one_by_one(model: Any, data: EncodedTexts) -> np.ndarray:
    with torch.no_grad():
        return np.concatenate([model(input_ids=data[i]["input_ids"][None]).logits.numpy() for i in range(len(data))])


def test_batched_predictions_are_those_of_single_texts(
    model: Any, data: EncodedTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = one_by_one(model.eval(), data)
    monkeypatch.setitem(evaluating.MOST_TOKENS, "cpu", 64)
    model.train()
    model.classifier.eval()
    done: list[int] = []
    found = Evaluator(PadBatch(0), CPU).predict(model, data, done.append)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (sum(done), model.training, model.classifier.training) == (40, True, False)


def test_evaluation_draws_no_random_number(model: Any, data: EncodedTexts) -> None:
    before = torch.random.get_rng_state()
    Evaluator(PadBatch(0), CPU).predict(model.train(), data)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_batch_that_does_not_fit_is_halved(model: Any, data: EncodedTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, forward = one_by_one(model.eval(), data), model.forward

    def small(input_ids: torch.Tensor, **rest: Any) -> Any:
        if len(input_ids) > 3:
            raise torch.OutOfMemoryError("no room")
        return forward(input_ids=input_ids, **rest)

    monkeypatch.setattr(model, "forward", small)
    np.testing.assert_allclose(Evaluator(PadBatch(0), CPU).predict(model, data), expected, atol=1e-6)


def test_not_even_one_text_fits(model: Any, data: EncodedTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**batch: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(model, "forward", never)
    with pytest.raises(OutOfMemoryError, match="not even one text of 29 tokens fits on cpu. Lower data.max_length"):
        Evaluator(PadBatch(0), CPU).predict(model, data)
