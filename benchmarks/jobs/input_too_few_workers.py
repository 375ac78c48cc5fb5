"""One worker reads ahead where four would keep up."""

import time

from _common import Vectors, arguments, perceptron, train
from torch.utils.data import DataLoader


class Remote(Vectors):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


if __name__ == "__main__":
    given = arguments(steps=80)
    workers = 5 if given.remedied else 1
    loader = DataLoader(Remote(), batch_size=32, num_workers=workers, persistent_workers=True)
    train(perceptron(768), loader, given.steps)
