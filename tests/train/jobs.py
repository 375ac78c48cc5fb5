"""Small jobs that the tests of this room share."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from nearpeak import Job

CLASSES, VOCABULARY = 3, 100


def texts(count: int, *, longest: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Token sequences of unequal lengths."""
    draw = random.Random(seed)
    return [_text(draw, longest) for _ in range(count)]


def _text(draw: random.Random, longest: int) -> dict[str, Any]:
    length = max(2, min(longest, round(draw.lognormvariate(1.8, 0.7))))
    tokens = [draw.randrange(5, VOCABULARY) for _ in range(length)]
    return {"input_ids": tokens, "attention_mask": [1] * length, "labels": draw.randrange(CLASSES)}


def config(kind: str = "bert", **settings: Any) -> Any:
    """A tiny configuration of a model type, without dropout unless asked for."""
    from transformers import AutoConfig

    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "num_labels": CLASSES,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **EXTRA.get(kind, {}),
        **settings,
    }
    return AutoConfig.for_model(kind, **values)


EXTRA: dict[str, dict[str, Any]] = {
    "distilbert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
    "albert": {"embedding_size": 16, "classifier_dropout_prob": 0.0},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    "llama": {"num_key_value_heads": 2},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


def classifier(kind: str = "bert", seed: int = 0, **settings: Any) -> Any:
    """A tiny text classifier with random weights."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_config(config(kind, **settings))


def text_job(**settings: Any) -> Job:
    """A text classification job of 40 texts, windows of 8."""
    values: dict[str, Any] = {
        "model": settings.pop("model", None) or classifier(),
        "data": settings.pop("data", None) or texts(40),
        "loss": lambda model, batch: model(**batch).loss,
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        "global_batch": 8,
        "epochs": 1,
        **settings,
    }
    return Job(**values)


class Points(torch.utils.data.Dataset):
    """Vectors with a class each; no lengths."""

    def __init__(self, count: int, width: int = 6):
        generator = torch.Generator().manual_seed(0)
        self.values = torch.randn(count, width, generator=generator)
        self.classes = torch.randint(CLASSES, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.values[index], self.classes[index]


def perceptron(width: int = 6, *, norm: bool = False, seed: int = 0) -> nn.Sequential:
    """Two layers, with BatchNorm if asked for."""
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(width, 16), *middle, nn.Tanh(), nn.Linear(16, CLASSES))


def point_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def point_job(count: int = 40, **settings: Any) -> Job:
    """A classification of vectors."""
    values: dict[str, Any] = {
        "model": perceptron(),
        "data": Points(count),
        "loss": point_loss,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "global_batch": 8,
        "epochs": 1,
        **settings,
    }
    return Job(**values)
