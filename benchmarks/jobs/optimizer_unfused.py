"""AdamW goes through 400 small tensors one by one; the remedy is its fused kernel."""

import torch
from _common import Vectors, arguments, in_batches, perceptron, train

if __name__ == "__main__":
    given = arguments(steps=100)
    model = perceptron(192, layers=200)
    how = {"fused": True} if given.remedied else {"foreach": False}
    train(model, list(in_batches(Vectors(), 16)), given.steps, torch.optim.AdamW(model.parameters(), lr=1e-4, **how))
