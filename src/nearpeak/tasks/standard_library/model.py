"""The demo's model: BERT's own classes and loss, from a small configuration, with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nearpeak.tasks.standard_library.tokenizer import MOST_TOKENS

if TYPE_CHECKING:
    from torch.nn import Module

    from nearpeak.plan import Plan

__all__ = ["make_model", "score"]

WIDTH_OF_HEAD = 64
SPREAD_OF_WEIGHTS = 0.05
"""BERT's 0.02 suits 768 wide and a million steps; narrower and a few hundred steps want about 1/√hidden."""
TOKENS_OF_BATCH = 4_096


def make_model(vocabulary: int, classes: int, *, layers: int, hidden: int, seed: int = 0) -> Module:
    """A BERT classifier without dropout: two ways to execute it can then be compared to rounding."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // WIDTH_OF_HEAD),
        intermediate_size=4 * hidden,
        max_position_embeddings=MOST_TOKENS,
        id2label={label: str(label) for label in range(classes)},
        initializer_range=SPREAD_OF_WEIGHTS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
    _start_from_words(model)
    return model


def _start_from_words(model: Any) -> None:
    """Positions and token types start at zero: at first a snippet is told by its words, not by where they stand."""
    import torch

    embeddings = model.bert.embeddings
    with torch.no_grad():
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()


def score(model: Any, samples: Sequence[dict[str, Any]], plan: Plan) -> Iterator[tuple[int, int]]:
    """(samples, how many of them right) of one batch after another, like lengths together."""
    import torch

    from nearpeak.train.batches import default_collate
    from nearpeak.train.device import move
    from nearpeak.train.precision import autocast

    device = next(model.parameters()).device
    with _evaluating(model, plan), torch.no_grad(), autocast(plan.precision, device):
        for group in _alike(samples):
            batch = move(default_collate(group), device)
            predicted = model(**batch).logits.argmax(-1)
            yield len(group), int((predicted == batch["labels"]).sum())


@contextmanager
def _evaluating(model: Any, plan: Plan) -> Iterator[None]:
    import torch

    from nearpeak.train.kernels import apply_matmul

    before, undo = torch.get_num_threads(), apply_matmul(model, plan.matmul)
    torch.set_num_threads(plan.threads or before)
    model.eval()
    try:
        yield
    finally:
        model.train()
        undo()
        torch.set_num_threads(before)


def _alike(samples: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Batches of neighbours by length, within a number of padded tokens."""
    batch: list[dict[str, Any]] = []
    for sample in sorted(samples, key=lambda item: len(item["input_ids"])):
        if batch and (len(batch) + 1) * len(sample["input_ids"]) > TOKENS_OF_BATCH:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch
