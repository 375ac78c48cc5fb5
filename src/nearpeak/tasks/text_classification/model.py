"""The classifier and its tokenizer: from a folder or hub name, from an architecture, or from scratch."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.errors import DataError, SettingError
from nearpeak.tasks.text_classification.config import ModelConfig
from nearpeak.tasks.text_classification.labels import LabelSpace

__all__ = ["Classifier", "build_classifier", "longest_input", "train_tokenizer"]

PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
PRESET_SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512},
    "small": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
}
PRESET_LONGEST = 512
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "mpnet",
    "data2vec-text",
    "longformer",
    "xmod",
    "bertweet",
)
"""Architectures whose positions begin behind the padding index, so that fewer are left for tokens."""
UNLIMITED = 1_000_000


@dataclass(slots=True)
class Classifier:
    """A model and what feeds it."""

    model: Any
    tokenizer: Any
    trained: bool
    """Whether the weights come from earlier training."""
    notes: list[str]

    @property
    def keys(self) -> tuple[str, ...]:
        """What the model's forward takes by name."""
        return tuple(inspect.signature(self.model.forward).parameters)


def build_classifier(config: ModelConfig, space: LabelSpace, texts: Sequence[str], seed: int) -> Classifier:
    """Model and tokenizer for these labels; new weights are drawn from `seed` alone."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if config.from_scratch is not None:
            classifier = _from_scratch(config, space, texts)
        elif config.from_config is not None:
            classifier = _from_config(config, space)
        else:
            classifier = _from_weights(config, space)
    _give_padding_token(classifier)
    _check_vocabulary(classifier)
    return classifier


def head_settings(space: LabelSpace) -> dict[str, Any]:
    """What the model's config has to know of the labels."""
    names = space.names or ("target",)
    return {
        "num_labels": space.outputs,
        "id2label": dict(enumerate(names)),
        "label2id": {name: place for place, name in enumerate(names)},
        "problem_type": PROBLEM_TYPES[space.problem],
    }


def _from_scratch(config: ModelConfig, space: LabelSpace, texts: Sequence[str]) -> Classifier:
    from transformers import BertConfig, BertForSequenceClassification

    assert config.from_scratch is not None
    tokenizer = (
        _load_tokenizer(config.tokenizer, config) if config.tokenizer else train_tokenizer(texts, config.vocabulary)
    )
    shape = PRESET_SHAPES[config.from_scratch]
    architecture = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=PRESET_LONGEST,
        pad_token_id=tokenizer.pad_token_id or 0,
        **shape,
    )
    _set(architecture, head_settings(space))
    notes = (
        []
        if config.tokenizer
        else [f"tokenizer: {len(tokenizer):,} tokens, trained on the {len(texts):,} training texts"]
    )
    return Classifier(BertForSequenceClassification(architecture), tokenizer, False, notes)


def _from_config(config: ModelConfig, space: LabelSpace) -> Classifier:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    assert config.from_config is not None
    path = Path(config.from_config)
    if not path.exists():
        raise SettingError(
            f"model.from_config={config.from_config!r}: no such file or folder; it must hold a config.json."
        )
    try:
        architecture = AutoConfig.from_pretrained(str(path))
        _set(architecture, head_settings(space))
        model = AutoModelForSequenceClassification.from_config(architecture, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"model.from_config={config.from_config!r}: {_first_line(error)}") from error
    folder = path if path.is_dir() else path.parent
    return Classifier(model, _load_tokenizer(config.tokenizer or str(folder), config), False, [])


def _from_weights(config: ModelConfig, space: LabelSpace) -> Classifier:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    assert config.name_or_path is not None
    name = config.name_or_path
    try:
        architecture = AutoConfig.from_pretrained(name, revision=config.revision)
        before = architecture.num_labels
        _set(architecture, head_settings(space))
        # Weights are trained in fp32 whatever they were stored in; the plan's precision decides about computing.
        model = AutoModelForSequenceClassification.from_pretrained(
            name, config=architecture, revision=config.revision, dtype=torch.float32, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(_load_message("model.name_or_path", name, error)) from error
    notes = (
        [f"model: its own head had {before} outputs, the data wants {space.outputs}"] if before != space.outputs else []
    )
    return Classifier(model, _load_tokenizer(config.tokenizer or name, config), True, notes)


def keep_class_order(name: str | None, space: LabelSpace, revision: str | None = None) -> LabelSpace:
    """The order of a model's own classes, where it already tells exactly these apart: its head then stays right."""
    from transformers import AutoConfig

    if name is None or not space.names:
        return space
    try:
        known: Any = AutoConfig.from_pretrained(name, revision=revision).id2label
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(_load_message("model.name_or_path", name, error)) from error
    names = tuple(str(known[place]) for place in sorted(known))
    if names == space.names or sorted(names) != sorted(space.names):
        return space
    by_name = {space.names[place]: value for value, place in space.ids.items()}
    return LabelSpace(space.problem, names, {by_name[label]: place for place, label in enumerate(names)})


def _load_tokenizer(name: str, config: ModelConfig) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, revision=None if config.tokenizer else config.revision)
    except (OSError, ValueError, KeyError, TypeError) as error:
        setting = "model.tokenizer" if config.tokenizer else "the model's tokenizer"
        raise SettingError(_load_message(setting, name, error)) from error


def _load_message(setting: str, name: str, error: Exception) -> str:
    return (
        f"{setting}={name!r} cannot be loaded: {_first_line(error)} Give a folder with config.json and weights, or a "
        "hub "
        "name that this machine can reach (HF_HUB_OFFLINE=1 keeps to what was fetched before)."
    )


def _first_line(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _set(architecture: Any, settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        setattr(architecture, key, value)


def _give_padding_token(classifier: Classifier) -> None:
    """Decoders often come without one; their classification head needs it to find each text's last token."""
    tokenizer, architecture = classifier.tokenizer, classifier.model.config
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise SettingError(
                "The tokenizer has neither a padding nor an end token; set one in its tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.eos_token
        classifier.notes.append(f"tokenizer: has no padding token; {tokenizer.eos_token!r} is used")
    if getattr(architecture, "pad_token_id", None) is None:
        architecture.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "right"


def _check_vocabulary(classifier: Classifier) -> None:
    rows = classifier.model.get_input_embeddings().num_embeddings
    if len(classifier.tokenizer) > rows:
        raise SettingError(
            f"The tokenizer has {len(classifier.tokenizer):,} tokens, the model only {rows:,} embeddings: they do "
            "not belong "
            "together. Set model.tokenizer to the model's own, or vocab_size in its config.json."
        )


def longest_input(classifier: Classifier) -> int | None:
    """Most tokens that the model has positions for; None where it sets no bound."""
    architecture = classifier.model.config
    positions = getattr(architecture, "max_position_embeddings", None)
    if positions and architecture.model_type in OFFSET_POSITIONS:
        positions -= (architecture.pad_token_id or 0) + 1
    limits = [limit for limit in (positions, classifier.tokenizer.model_max_length) if limit and limit < UNLIMITED]
    return min(limits, default=None)


# A tokenizer of our own


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """A lower-casing WordPiece tokenizer learned from the texts; the same texts give the same one."""
    from tokenizers import models, trainers
    from transformers import PreTrainedTokenizerFast

    bare = _bare(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    # The trainer numbers characters in the order of a hash table and breaks ties by number. Naming them all
    # beforehand, in order, makes training repeatable, as ranks that each train their own need it.
    fixed = SPECIAL + list(_alphabet(bare, texts))
    trainer: Any = trainers.WordPieceTrainer(
        vocab_size=max(vocabulary, len(fixed)), special_tokens=fixed, min_frequency=2, show_progress=False
    )
    bare.train_from_iterator(texts, trainer)
    learned = bare.get_vocab()
    whole = _bare(models.WordPiece(vocab=learned, unk_token="[UNK]"))  # type: ignore[call-arg]
    _frame_with_separators(whole, learned)
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(
        tokenizer_object=whole,
        model_max_length=PRESET_LONGEST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def _bare(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer: Any = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _alphabet(tokenizer: Any, texts: Sequence[str], most: int = 2_000) -> Iterator[str]:
    """Each character, alone and as the continuation of a word; of many thousand only the most frequent."""
    counts: Counter[str] = Counter()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts.update(word)
    if not counts:
        raise DataError("The training texts hold no character that a tokenizer could learn from.")
    chosen = sorted(sorted(counts, key=lambda char: (-counts[char], char))[:most])
    yield from chosen
    yield from (f"##{char}" for char in chosen)


def _frame_with_separators(tokenizer: Any, vocabulary: dict[str, int]) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
