"""Fine-tune a small BERT with the Hugging Face Trainer, as the tutorials write it. Runs offline, in seconds.

    python examples/hf_classification.py [--output_dir DIR]

It tells questions from statements and orders. Text, tokenizer and model are made here; only the Trainer matters.
`hf_classification_plain.py` is the same file but for one import line.
"""
# ruff: noqa: I001, RUF100  the twins differ by one line only

from __future__ import annotations

import itertools
import random
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, TrainingArguments, set_seed

from transformers import Trainer

NOUNS = ["train", "engine", "garden", "letter", "window", "river", "teacher", "market", "doctor", "bridge"]
VERBS = ["stops", "opens", "moves", "waits", "changes", "returns", "works", "breaks"]
PLACES = ["near the old station", "behind the house", "in the middle of the night", "before anybody else", "again"]
FRAMES = [
    "the {noun} {verb} {place} .",
    "where and why the {noun} {verb} {place} ?",
    "make sure that the {noun} {verb} {place} !",
]


def make_texts(count: int, rng: random.Random) -> tuple[list[str], list[int]]:
    """Sentences of one kind, followed by a few words more or many: most texts are short, some are long."""
    texts, labels = [], []
    for _ in range(count):
        label = rng.randrange(3)
        text = FRAMES[label].format(noun=rng.choice(NOUNS), verb=rng.choice(VERBS), place=rng.choice(PLACES))
        more = int(rng.lognormvariate(2.0, 0.8))
        texts.append(" ".join([text, *(rng.choice(NOUNS + VERBS) for _ in range(more))]))
        labels.append(label)
    return texts, labels


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer that frames a text as BERT expects it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)


def main() -> None:
    """Train for 40 optimizer steps and print the logged losses."""
    torch.set_num_threads(1)
    set_seed(7)
    texts, labels = make_texts(400, random.Random(7))
    tokenizer = make_tokenizer(texts)

    def tokenize(rows: dict) -> dict:
        return tokenizer(rows["text"], padding="max_length", truncation=True)

    data = Dataset.from_dict({"text": texts, "label": labels}).map(tokenize, batched=True)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    output_dir = sys.argv[sys.argv.index("--output_dir") + 1] if "--output_dir" in sys.argv else "hf_classification"
    arguments = TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        max_steps=40,
        learning_rate=2e-3,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=7,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=arguments, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    logs = itertools.takewhile(lambda entry: "loss" in entry, trainer.state.log_history)
    for entry in logs:
        print(f"step {entry['step']:3d}  loss {entry['loss']:.7f}")


if __name__ == "__main__":
    main()
