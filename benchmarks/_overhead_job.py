"""Steps of about as many milliseconds as asked for: a small encoder, a loader, AdamW, a loss read now and then.

Prints, as JSON, the wall and CPU milliseconds of each step from the end of the warm-up on and a digest of the
weights. With `--alternate` it runs under `nearpeak run`, switches the watching off and on in turn, and prints what a
step took in each stretch of either kind.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Iterator
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
STRETCH_S = 3.5
"""Several writings of the recorder lie in one."""


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Job:
    """The training; `step` makes one update."""

    def __init__(self, step_ms: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        width, layers, batch, tokens = SIZES[step_ms]
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(1000, width), encoder, nn.Linear(width, 1000))
        self.data = TensorDataset(torch.randint(1000, (4096, tokens)), torch.randint(1000, (4096, tokens)))
        self.batch, self.done = batch, 0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.criterion = nn.CrossEntropyLoss()
        self.batches = self._batches()

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from DataLoader(self.data, batch_size=self.batch, shuffle=True)

    def step(self, around: Any = nullcontext) -> None:
        values, targets = next(self.batches)
        with around():
            loss = self.criterion(self.model(values).flatten(0, 1), targets.flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.done += 1
        if self.done % 50 == 0:
            loss.item()

    def digest(self) -> str:
        return sum(p.double().abs().sum() for p in self.model.parameters()).item().hex()


def run_steps(job: Job, steps: int, warm_up: int, tool: str | None) -> dict[str, Any]:
    """Every step's time, under one tool or none."""
    around, profiler = nullcontext, None
    if tool == "torch.profiler":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profiler.start()
    if tool == "traceml":
        import traceml_ai

        traceml_ai.init(mode="auto")
        around = partial(traceml_ai.trace_step, job.model)
    times = []
    for _ in range(warm_up + steps):
        job.step(around)
        times.append((time.perf_counter(), cpu_s()))
    if profiler is not None:
        profiler.stop()
    pairs = list(pairwise(times[warm_up - 1 :]))
    return {"wall_ms": [1e3 * (b[0] - a[0]) for a, b in pairs], "cpu_ms": [1e3 * (b[1] - a[1]) for a, b in pairs]}


def alternate(job: Job, pairs: int, steps: int) -> dict[str, Any]:
    """Milliseconds a step of each stretch, (wall, CPU); which of a pair is first is drawn, and one more warms up."""
    from nearpeak.observe.probe import current

    probe, draw = current(), random.Random(pairs)
    if probe is None:
        raise SystemExit("--alternate: nothing watches this process; start it with nearpeak run.")
    told: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    for kind in ["on"] + [each for _ in range(pairs) for each in draw.sample(("on", "off"), 2)]:
        probe.boundary.active = kind == "on"
        for _ in range(3):  # the first steps of a kind find the other's caches
            job.step()
        began = time.perf_counter(), cpu_s()
        for _ in range(steps):
            job.step()
        told[kind].append((1e3 * (time.perf_counter() - began[0]) / steps, 1e3 * (cpu_s() - began[1]) / steps))
        while probe.watch.closed:  # what is written of this stretch is no cost of the next
            time.sleep(0.01)
    return {kind: stretches[-pairs:] for kind, stretches in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=int, choices=SIZES, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--with", dest="tool", choices=("torch.profiler", "traceml"), help="watch with this instead")
    parser.add_argument("--alternate", type=int, metavar="PAIRS", help="stretches with and without nearpeak")
    given = parser.parse_args()
    job = Job(given.step_ms)
    if given.alternate:
        told = alternate(job, given.alternate, round(1e3 * STRETCH_S / given.step_ms))
    else:
        told = run_steps(job, given.steps, WARM_UP_MS // given.step_ms, given.tool) | {"digest": job.digest()}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
