"""Each sample is decompressed in the training process, without workers."""

import zlib

import torch
from _common import Vectors, arguments, perceptron, train
from torch.utils.data import DataLoader


class Compressed(Vectors):
    def __init__(self):
        super().__init__()
        noise = torch.randint(64, (400_000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
        self.image = zlib.compress(noise.numpy().tobytes(), 6)

    def __getitem__(self, index):
        zlib.decompress(self.image)
        return super().__getitem__(index)


if __name__ == "__main__":
    given = arguments(steps=60)
    torch.set_num_threads(1)
    workers = {"num_workers": 1, "persistent_workers": True} if given.remedied else {}
    train(perceptron(1024), DataLoader(Compressed(), batch_size=16, **workers), given.steps)
