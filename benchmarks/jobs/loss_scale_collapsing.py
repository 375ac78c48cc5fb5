"""fp16 with a loss that overflows again and again: updates are skipped; the remedy is bf16, which needs no scale."""

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=60)
    model, clock = perceptron(256), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=not given.remedied, growth_interval=1)
    kind = torch.bfloat16 if given.remedied else torch.float16
    for step, (values, kinds) in enumerate(in_batches(Vectors(), 128)):
        with torch.autocast("cpu", kind):
            loss = nn.functional.cross_entropy(model(values), kinds)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        clock.tick()
        if step + 1 == given.steps:
            break
    clock.tell()
