"""Nothing planted: two ranks, each its part of the data, one exchange an update that compute outweighs."""

import itertools

import torch
import torch.distributed as dist
from _common import Clock, Vectors, arguments, in_batches, perceptron, precision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    given = arguments(steps=60)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    batches = list(itertools.islice(in_batches(Vectors(100_000, 128), 16384), dist.get_rank(), None, 2))
    model, clock = DistributedDataParallel(perceptron(192, layers=4, inputs=128)), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (values, kinds) in enumerate(itertools.cycle(batches)):
        with precision():
            loss = nn.functional.cross_entropy(model(values), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()
        if step + 1 == given.steps:
            break
    if dist.get_rank() == 0:
        clock.tell()
    dist.destroy_process_group()
