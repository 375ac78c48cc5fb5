"""Large products in fp32 on a processor that has units for bf16; the remedy is autocast."""

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=30)
    model, clock = perceptron(1536, layers=5), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (values, kinds) in enumerate(in_batches(Vectors(), 512)):
        with torch.autocast("cpu", torch.bfloat16, enabled=given.remedied):
            loss = nn.functional.cross_entropy(model(values), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()
        if step + 1 == given.steps:
            break
    clock.tell()
