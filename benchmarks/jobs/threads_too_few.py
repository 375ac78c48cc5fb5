"""One thread computes, the other cores idle; the remedy uses them."""

import os

import torch
from _common import Vectors, arguments, in_batches, perceptron, train

if __name__ == "__main__":
    given = arguments(steps=40)
    torch.set_num_threads(len(os.sched_getaffinity(0)) if given.remedied else 1)
    train(perceptron(1536, layers=5), in_batches(Vectors(), 512), given.steps)
