"""The norm of every gradient and every sample's loss is read in every step; the remedy reads them every fifty."""

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron, precision
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=100)
    model, clock, history = perceptron(256, layers=8), Clock(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (values, kinds) in enumerate(in_batches(Vectors(), 512)):
        with precision():
            losses = nn.functional.cross_entropy(model(values), kinds, reduction="none")
        losses.mean().backward()
        optimizer.step()
        if step % (50 if given.remedied else 1) == 0:
            history.append({name: p.grad.norm().item() for name, p in model.named_parameters()})
            history.append([loss.item() for loss in losses for _ in range(8)])
        optimizer.zero_grad()
        clock.tick()
        if step + 1 == given.steps:
            break
    clock.tell()
