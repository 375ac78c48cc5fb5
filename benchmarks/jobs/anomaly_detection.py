"""Left on after debugging."""

import torch
from _common import Vectors, arguments, in_batches, perceptron, train

if __name__ == "__main__":
    given = arguments(steps=100)
    torch.autograd.set_detect_anomaly(not given.remedied)
    train(perceptron(128, layers=40), in_batches(Vectors(), 32), given.steps)
