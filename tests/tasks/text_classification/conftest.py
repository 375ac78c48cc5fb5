"""Small files, small models: everything that these tests need is made here."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = {
    "fruit": ["apple", "pear", "plum", "cherry", "melon", "quince", "grape"],
    "tool": ["hammer", "saw", "pliers", "drill", "chisel", "wrench", "file"],
    "animal": ["cat", "horse", "otter", "heron", "beetle", "carp", "vole"],
}
FILLER = [
    "the",
    "a",
    "this",
    "that",
    "with",
    "under",
    "over",
    "beside",
    "seen",
    "bought",
    "lost",
    "found",
    "old",
    "new",
]


def sentence(topic: str, source: random.Random) -> str:
    """A few words of which some tell the topic."""
    words = source.choices(FILLER, k=source.randint(2, 14)) + source.choices(WORDS[topic], k=3)
    source.shuffle(words)
    return " ".join(words)


def topic_rows(rows: int, seed: int = 0, topics: tuple[str, ...] = tuple(WORDS)) -> list[dict[str, Any]]:
    """Rows with columns text and label, the topics in turn."""
    source = random.Random(seed)
    return [{"text": sentence(topic, source), "label": topic} for topic in (topics * rows)[:rows]]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a very small BERT of two classes and its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    from nearpeak.tasks.text_classification.model import train_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = train_tokenizer([row["text"] for row in topic_rows(120)], 300)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(name="topic_rows")
def _topic_rows() -> Callable[..., list[dict[str, Any]]]:
    return topic_rows


@pytest.fixture
def save_rows(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Path]:
    """Writes rows into a CSV or JSON lines file, by its name."""

    def save(name: str, rows: list[dict[str, Any]]) -> Path:
        return (write_csv if name.endswith("csv") else write_jsonl)(tmp_path / name, rows)

    return save


@pytest.fixture
def job_file(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    """Writes a config with a fast plan, sections laid over it, and train.csv where there is none."""

    def make(**sections: dict[str, Any]) -> Path:
        if not (tmp_path / "train.csv").exists():
            write_csv(tmp_path / "train.csv", topic_rows(24))
        found: dict[str, dict[str, Any]] = {
            "data": {"train": "train.csv"},
            "model": {"from_config": str(tiny_model)},
            "job": {"global_batch": 8, "optimizer_steps": 4, "learning_rate": 0.01},
            "plan": {"micro_batching": "partition", "loader": {"workers": 0}},
            "output": {"folder": "model"},
        }
        for name, section in sections.items():
            found[name] = found.get(name, {}) | section
        path = tmp_path / "config.toml"
        path.write_text("\n".join(f"[{name}]\n{_toml(section)}" for name, section in found.items()), encoding="utf-8")
        return path

    return make


def _toml(section: dict[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in section.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
