"""Twelve threads for each core; the remedy is one."""

import os

import torch
from _common import Vectors, arguments, in_batches, perceptron, train

if __name__ == "__main__":
    given = arguments(steps=60)
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores if given.remedied else 12 * cores)
    train(perceptron(512, layers=6), in_batches(Vectors(), 128), given.steps)
