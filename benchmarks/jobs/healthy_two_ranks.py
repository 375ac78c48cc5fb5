"""Nothing planted: two ranks, each its part of the data, one exchange an update that compute outweighs."""

import torch
import torch.distributed as dist
from _common import Clock, Vectors, arguments, perceptron
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

if __name__ == "__main__":
    given = arguments(steps=60)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = Vectors(40_000)
    loader = DataLoader(data, batch_size=512, sampler=DistributedSampler(data))
    model, clock = DistributedDataParallel(perceptron(256, layers=4)), Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    done = 0
    while done < given.steps:
        for values, kinds in loader:
            nn.functional.cross_entropy(model(values), kinds).backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()
            done += 1
            if done == given.steps:
                break
    if dist.get_rank() == 0:
        clock.tell()
    dist.destroy_process_group()
