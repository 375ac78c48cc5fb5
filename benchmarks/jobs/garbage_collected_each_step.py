"""A full garbage collection in every step, beside many objects; the remedy leaves it to Python."""

import gc

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=80)
    held = [{"number": number, "parts": [number]} for number in range(200_000)]
    model, clock = perceptron(384), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (values, kinds) in enumerate(in_batches(Vectors(), 64)):
        nn.functional.cross_entropy(model(values), kinds).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not given.remedied:
            gc.collect()
        clock.tick()
        if step + 1 == given.steps:
            break
    clock.tell()
    assert held
