"""Short texts are padded to the longest that the model takes; the remedy pads each batch to its own longest."""

import torch
from _common import Clock, Encoder, arguments, precision
from torch import nn
from torch.utils.data import DataLoader

LONGEST = 256


def samples(count):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 60, (count,), generator=generator).tolist()
    return [torch.randint(2000, (length,), generator=generator) for length in lengths]


def padded(batch, width):
    ids, mask = torch.zeros(len(batch), width, dtype=torch.long), torch.zeros(len(batch), width, dtype=torch.long)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(len(batch), dtype=torch.long)}


if __name__ == "__main__":
    given = arguments(steps=40)
    data = samples(640)

    def collate(batch):
        return padded(batch, max(map(len, batch)) if given.remedied else LONGEST)

    model, clock, done = Encoder(width=192, layers=3), Clock(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loader = DataLoader(data, batch_size=16, collate_fn=collate)
    for _ in range(10):
        for batch in loader:
            with precision():
                logits = model(batch["input_ids"], batch["attention_mask"])
                loss = nn.functional.cross_entropy(logits, batch["labels"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            done += 1
            if done == given.steps:
                break
        if done == given.steps:
            break
    clock.tell()
