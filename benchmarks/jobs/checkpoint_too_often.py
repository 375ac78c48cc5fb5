"""Saved after every fifth step, in place; the remedy saves every fiftieth."""

import tempfile

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=105)
    model, clock = perceptron(1024, layers=5), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        for step, (values, kinds) in enumerate(in_batches(Vectors(), 64)):
            nn.functional.cross_entropy(model(values), kinds).backward()
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % (50 if given.remedied else 5) == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/last.pt")
            clock.tick()
            if step + 1 == given.steps:
                break
    clock.tell()
