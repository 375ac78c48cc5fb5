"""Nothing planted: one worker that lives on keeps up with a model that takes longer."""

import torch
from _common import Vectors, arguments, perceptron, train
from torch.utils.data import DataLoader

if __name__ == "__main__":
    given = arguments(steps=80)
    torch.set_num_threads(1)
    loader = DataLoader(Vectors(), batch_size=64, shuffle=True, num_workers=1, persistent_workers=True)
    train(perceptron(640, layers=6), loader, given.steps)
