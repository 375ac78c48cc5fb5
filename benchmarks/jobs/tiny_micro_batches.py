"""Sixteen micro-batches of two samples an update; the remedy takes the 32 samples at once: the same global batch."""

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=80)
    size, parts = (32, 1) if given.remedied else (2, 16)
    model, clock, done = perceptron(128, layers=12), Clock(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for number, (values, kinds) in enumerate(in_batches(Vectors(), size)):
        (nn.functional.cross_entropy(model(values), kinds) / parts).backward()
        if (number + 1) % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            done += 1
        if done == given.steps:
            break
    clock.tell()
