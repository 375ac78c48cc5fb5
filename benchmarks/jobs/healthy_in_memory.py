"""Nothing planted: batches cut out of memory, a fused update, all cores."""

import os

import torch
from _common import Vectors, arguments, in_batches, perceptron, train

if __name__ == "__main__":
    given = arguments(steps=120)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    train(perceptron(384), in_batches(Vectors(), 96), given.steps)
