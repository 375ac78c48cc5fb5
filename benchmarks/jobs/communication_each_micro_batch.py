"""Two ranks exchange gradients after every micro-batch of an accumulation; the remedy only after the last."""

import contextlib

import torch
import torch.distributed as dist
from _common import Clock, Vectors, arguments, in_batches, perceptron
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARTS = 8

if __name__ == "__main__":
    given = arguments(steps=40)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, clock, done = DistributedDataParallel(perceptron(1024, layers=4)), Clock(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for number, (values, kinds) in enumerate(in_batches(Vectors(), 4)):
        last = (number + 1) % PARTS == 0
        with contextlib.nullcontext() if last or not given.remedied else model.no_sync():
            (nn.functional.cross_entropy(model(values), kinds) / PARTS).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            done += 1
        if done == given.steps:
            break
    if dist.get_rank() == 0:
        clock.tell()
    dist.destroy_process_group()
