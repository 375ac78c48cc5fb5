"""Two ranks; the samples of the second come from a slower disk. The remedy gives both the same."""

import os
import time

import torch
import torch.distributed as dist
from _common import Vectors, arguments, perceptron, train
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Uneven(Vectors):
    def __init__(self, delay_s):
        super().__init__(20_000)
        self.delay_s = delay_s

    def __getitem__(self, index):
        if index % 32 == 0:
            time.sleep(self.delay_s)
        return super().__getitem__(index)


if __name__ == "__main__":
    given = arguments(steps=100)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == 1 and not given.remedied
    model = DistributedDataParallel(perceptron(384))
    if dist.get_rank() == 1:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # one rank tells the time
    train(model, DataLoader(Uneven(0.04 if slow else 0.0), batch_size=32), given.steps)
    dist.destroy_process_group()
