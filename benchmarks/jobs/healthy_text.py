"""Nothing planted: texts of like length, padded to the batch's own longest."""

import torch
from _common import Clock, Encoder, arguments, precision
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(batch):
    ids = pad_sequence(batch, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.zeros(len(batch), dtype=torch.long)}


if __name__ == "__main__":
    given = arguments(steps=60)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(56, 64, (20_000,), generator=generator).tolist()
    data = [torch.randint(1, 2000, (length,), generator=generator) for length in lengths]
    model, clock = Encoder(), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, batch in enumerate(DataLoader(data, batch_size=16, collate_fn=collate)):
        with precision():
            logits = model(batch["input_ids"], batch["attention_mask"])
            loss = nn.functional.cross_entropy(logits, batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()
        if step + 1 == given.steps:
            break
    clock.tell()
