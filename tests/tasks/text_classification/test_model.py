"""Classifiers from weights, from an architecture and from scratch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.errors import DataError, SettingError
from nearpeak.tasks.text_classification.config import ModelConfig
from nearpeak.tasks.text_classification.labels import LabelSpace
from nearpeak.tasks.text_classification.model import build_classifier, keep_class_order, longest_input, train_tokenizer

THREE = LabelSpace("single_label", ("a", "b", "c"), {"a": 0, "b": 1, "c": 2})
TEXTS = ["the quick brown fox", "jumps over the lazy dog", "ünïcode thé quick", "the dog, the fox; 漢字"] * 5


def weights(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_the_same_texts_train_the_same_tokenizer() -> None:
    first, second = (train_tokenizer(TEXTS, 120) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert first.get_vocab() != train_tokenizer(TEXTS[:1], 120).get_vocab()
    encoded = first("the dog", "the fox")
    assert first.convert_ids_to_tokens(encoded["input_ids"]) == ["[CLS]", "the", "dog", "[SEP]", "the", "fox", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert first.unk_token_id not in first(TEXTS[3])["input_ids"]
    assert (
        first.decode(first("jumps over the lazy dog")["input_ids"], skip_special_tokens=True)
        == "jumps over the lazy dog"
    )


def test_texts_without_a_character_train_no_tokenizer() -> None:
    with pytest.raises(DataError, match="no character"):
        train_tokenizer(["\u0000", " "], 100)


def test_from_scratch_depends_on_the_seed_alone_and_leaves_the_generator_alone() -> None:
    config = ModelConfig(from_scratch="tiny", vocabulary=100)
    before = torch.random.get_rng_state()
    first, second = (build_classifier(config, THREE, TEXTS, seed=1) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(weights(first.model), weights(second.model))
    assert not torch.equal(weights(first.model), weights(build_classifier(config, THREE, TEXTS, seed=2).model))
    assert (first.model.config.id2label, first.model.config.num_labels) == ({0: "a", 1: "b", 2: "c"}, 3)
    assert first.model.config.problem_type == "single_label_classification"
    assert longest_input(first) == 512
    assert not first.trained


def test_an_architecture_alone_and_weights_with_another_head(tiny_model: Path) -> None:
    drawn = build_classifier(ModelConfig(from_config=str(tiny_model / "config.json")), THREE, TEXTS, 0)
    loaded = build_classifier(ModelConfig(name_or_path=str(tiny_model)), THREE, TEXTS, 0)
    assert (drawn.model.num_labels, loaded.model.num_labels) == (3, 3)
    assert (drawn.trained, loaded.trained) == (False, True)
    assert loaded.notes == ["model: its own head had 2 outputs, the data wants 3"]
    embeddings = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(drawn.model.state_dict()[embeddings], loaded.model.state_dict()[embeddings])


def test_the_order_of_a_models_own_classes_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "known")
    config = json.loads((folder / "config.json").read_text())
    names = {"0": "c", "1": "a", "2": "b"}
    (folder / "config.json").write_text(
        json.dumps(config | {"id2label": names, "label2id": {v: int(k) for k, v in names.items()}})
    )
    assert keep_class_order(str(folder), THREE) == LabelSpace("single_label", ("c", "a", "b"), {"c": 0, "a": 1, "b": 2})
    assert keep_class_order(str(tiny_model), THREE) is THREE
    assert keep_class_order(None, THREE) is THREE


def test_weights_stored_in_half_precision_are_trained_in_fp32(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    AutoModelForSequenceClassification.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path)
    assert build_classifier(ModelConfig(name_or_path=str(tmp_path)), THREE, TEXTS, 0).model.dtype == torch.float32


def test_a_decoder_without_padding_token_gets_one(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, LlamaConfig

    LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    ).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.eos_token, tokenizer.pad_token = "[SEP]", None
    tokenizer.save_pretrained(tmp_path)
    classifier = build_classifier(ModelConfig(from_config=str(tmp_path)), THREE, TEXTS, 0)
    assert classifier.model.config.pad_token_id == classifier.tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "token_type_ids" not in classifier.keys
    assert any("no padding token" in note for note in classifier.notes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name_or_path": "no/such-model"}, "model.name_or_path='no/such-model' cannot be loaded.*HF_HUB_OFFLINE"),
        ({"from_config": "nowhere"}, "model.from_config='nowhere': no such file or folder"),
        (
            {"from_scratch": "tiny", "tokenizer": "no/such-tokenizer"},
            "model.tokenizer='no/such-tokenizer' cannot be loaded",
        ),
    ],
)
def test_models_that_are_not_there(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build_classifier(ModelConfig(**settings), THREE, TEXTS, 0)


def test_a_tokenizer_of_another_model(tiny_model: Path, tmp_path: Path) -> None:
    train_tokenizer([" ".join(f"w{n}" for n in range(300))] * 2, 900).save_pretrained(tmp_path)
    with pytest.raises(SettingError, match="they do not belong together"):
        build_classifier(ModelConfig(name_or_path=str(tiny_model), tokenizer=str(tmp_path)), THREE, TEXTS, 0)
