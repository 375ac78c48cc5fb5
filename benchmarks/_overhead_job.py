"""Steps of about as many milliseconds as asked for: a small encoder, a loader, AdamW, a loss read now and then.

Prints the wall and CPU milliseconds of each step from the end of the warm-up on, and a digest of the weights, as JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZES = {5: (64, 2, 8, 22), 20: (96, 3, 11, 32)}
"""Width, layers, batch, tokens: for a step of about so many milliseconds on one core."""
WARM_UP_MS = 2500
"""What happens once (files are opened, set-ups are read) is no cost of a step, in any tool."""


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=int, choices=SIZES, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--with", dest="tool", choices=("torch.profiler", "traceml"), help="watch with this instead")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, layers, batch, tokens = SIZES[given.step_ms]
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(1000, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))
    head = nn.Linear(width, 1000)
    model.append(head)
    data = TensorDataset(torch.randint(1000, (4096, tokens)), torch.randint(1000, (4096, tokens)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    criterion, times, done = nn.CrossEntropyLoss(), [], 0
    around: Any = nullcontext
    profiler = None
    if given.tool == "torch.profiler":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profiler.start()
    if given.tool == "traceml":
        import traceml_ai

        traceml_ai.init(mode="auto")
        around = partial(traceml_ai.trace_step, model)
    warm_up = WARM_UP_MS // given.step_ms
    while done < given.steps + warm_up:
        for values, targets in DataLoader(data, batch_size=batch, shuffle=True):
            with around():
                loss = criterion(model(values).flatten(0, 1), targets.flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done % 50 == 0:
                loss.item()
            times.append((time.perf_counter(), cpu_s()))
            if done == given.steps + warm_up:
                break
    if profiler is not None:
        profiler.stop()
    kept = times[warm_up - 1 :]
    pairs = list(pairwise(kept))
    print(
        json.dumps(
            {
                "wall_ms": [1e3 * (b[0] - a[0]) for a, b in pairs],
                "cpu_ms": [1e3 * (b[1] - a[1]) for a, b in pairs],
                "digest": sum(p.double().abs().sum() for p in model.parameters()).item().hex(),
            }
        )
    )


if __name__ == "__main__":
    main()
