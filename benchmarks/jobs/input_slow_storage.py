"""Each sample comes from storage that answers slowly; nobody reads ahead."""

import time

from _common import Vectors, arguments, perceptron, train
from torch.utils.data import DataLoader


class Remote(Vectors):
    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(index)


if __name__ == "__main__":
    given = arguments(steps=80)
    workers = {"num_workers": 4, "persistent_workers": True} if given.remedied else {}
    train(perceptron(768), DataLoader(Remote(), batch_size=32, **workers), given.steps)
