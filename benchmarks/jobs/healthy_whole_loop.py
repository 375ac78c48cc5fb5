"""Nothing planted: a loop with all its parts, evaluation, saving, logging, each now and then."""

import tempfile

import torch
from _common import Clock, Vectors, arguments, in_batches, perceptron, precision
from torch import nn
from torch.utils.data import DataLoader


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(values).argmax(1) == kinds).sum() for values, kinds in loader)
    model.train()
    return right


if __name__ == "__main__":
    given = arguments(steps=205)
    model, clock, total = perceptron(512), Clock(), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    validation = DataLoader(Vectors(500), batch_size=250)
    with tempfile.TemporaryDirectory() as folder:
        for step, (values, kinds) in enumerate(in_batches(Vectors(), 256)):
            with precision():
                loss = nn.functional.cross_entropy(model(values), kinds)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            if (step + 1) % 50 == 0:
                print(f"step {step + 1}: loss {total.item() / 50:.4f}")
                total.zero_()
            if (step + 1) % 100 == 0:
                evaluate(model, validation)
                torch.save(model.state_dict(), f"{folder}/last.pt")
            clock.tick()
            if step + 1 == given.steps:
                break
    clock.tell()
