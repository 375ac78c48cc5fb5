"""Texts are tokenised in the collator, again in every epoch; the remedy tokenises once, before training."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from _common import Clock, Encoder, arguments, precision
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

WORDS = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in ("nt", "rst", "ling", "mer", "ton")]


def texts(count):
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(WORDS), (count, 400), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in row) for row in picks]


def tokenizer(data):
    raw = Tokenizer(models.BPE(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.train_from_iterator(data[:50], trainers.BpeTrainer(vocab_size=1500, special_tokens=["[UNK]", "[PAD]"]))
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]")


if __name__ == "__main__":
    given = arguments(steps=50)
    data = texts(800)
    encode = tokenizer(data)

    def tokenised(batch):
        return encode(batch, truncation=True, max_length=32, padding="max_length", return_tensors="pt")

    def stacked(batch):
        return {name: torch.stack([row[name] for row in batch]) for name in batch[0]}

    if given.remedied:
        whole = tokenised(data)
        loader = DataLoader([{n: v[i] for n, v in whole.items()} for i in range(len(data))], 32, collate_fn=stacked)
    else:
        loader = DataLoader(data, batch_size=32, collate_fn=tokenised)
    model, clock, done = Encoder(), Clock(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    while done < given.steps:
        for batch in loader:
            with precision():
                logits = model(batch["input_ids"], batch["attention_mask"])
                loss = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            done += 1
            if done == given.steps:
                break
    clock.tell()
