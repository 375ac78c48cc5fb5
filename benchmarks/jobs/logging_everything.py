"""Every step writes a histogram of every weight as JSON; the remedy writes every fiftieth."""

import json
import tempfile

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron, precision
from torch import nn

if __name__ == "__main__":
    given = arguments(steps=100)
    model, clock = perceptron(256, layers=6), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with tempfile.TemporaryFile("w") as log:
        for step, (values, kinds) in enumerate(in_batches(Vectors(), 256)):
            with precision():
                loss = nn.functional.cross_entropy(model(values), kinds)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % (50 if given.remedied else 1) == 0:
                histograms = {n: torch.histc(p.detach(), 512).tolist() for n, p in model.named_parameters()}
                json.dump({"step": step, "loss": loss.item(), "weights": histograms}, log)
            clock.tick()
            if step + 1 == given.steps:
                break
    clock.tell()
