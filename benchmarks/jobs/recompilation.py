"""A model compiled for fixed shapes meets a new length in most steps; the remedy compiles for any length."""

import torch
from _common import Clock, Encoder, arguments
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=40)
    torch._dynamo.config.recompile_limit = 64
    model, clock = Encoder(), Clock()
    compiled = torch.compile(model, backend="aot_eager", dynamic=given.remedied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(given.steps):
        length = 40 + (7 * step) % 37
        ids = torch.randint(2000, (16, length), generator=generator)
        logits = compiled(ids, torch.ones_like(ids))
        nn.functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()
    clock.tell()
