"""The collator builds tensors number by number; the remedy stacks them."""

import torch
from _common import Vectors, arguments, perceptron, train
from torch.utils.data import DataLoader, default_collate


def number_by_number(batch):
    values = torch.tensor([[float(number) for number in row] for row, _ in batch])
    return values, torch.tensor([int(kind) for _, kind in batch])


if __name__ == "__main__":
    given = arguments(steps=60)
    collate = default_collate if given.remedied else number_by_number
    train(perceptron(768), DataLoader(Vectors(), batch_size=32, collate_fn=collate), given.steps)
