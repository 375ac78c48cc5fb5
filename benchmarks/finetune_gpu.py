"""Fine-tuning bert-base on a GPU: nearpeak against the loop that tutorials show, wall time, the device synchronised.

    python benchmarks/finetune_gpu.py

Interleaved, as `finetune.py`: every variant runs the same windows of 32 texts, in turn. The tutorial's loop is given
what tutorials know: a fused AdamW and, in its bf16 form, autocast. Needs a CUDA device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from _table import Target, finish, options, print_table
from _texts import LONGEST, encoder, padded, texts

from nearpeak import Job, Plan, Run
from nearpeak.plan import LoaderSettings
from nearpeak.train.batches import default_collate
from nearpeak.train.order import SampleOrder

GLOBAL_BATCH, MICRO_BATCH, LEARNING_RATE = 32, 8, 5e-5
STEPS_A_TURN = 8

Steps = Iterator[float | None]


def model(dropout: float) -> Any:
    """bert-base's shape, random weights."""
    return encoder(dropout, width=768, layers=12)


def tutorial(data: list[dict[str, Any]], *, width: int | None, dropout: float, bf16: bool) -> Steps:
    """Loader, accumulation, AdamW; the loss is read once a step, as scripts do."""
    net, order = model(dropout).cuda().train(), SampleOrder(len(data), GLOBAL_BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=True)
    parts = GLOBAL_BATCH // MICRO_BATCH
    for k in range(10**9):
        window = [data[i] if width is None else padded(data[i], width) for i in order.window(k).indices]
        total = 0.0
        for start in range(0, GLOBAL_BATCH, MICRO_BATCH):
            batch = {n: v.cuda() for n, v in default_collate(window[start : start + MICRO_BATCH]).items()}
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                loss = net(**batch).loss / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        yield total


def ours(data: list[dict[str, Any]], *, dropout: float, plan: Plan) -> Steps:
    """The same job under a plan; the loss is read once a step too."""
    for step in Run(job(data, dropout), plan, device="cuda"):
        yield step.loss


def job(data: list[dict[str, Any]], dropout: float) -> Job:
    return Job(
        model=model(dropout),
        data=data,
        loss=lambda net, batch: net(**batch).loss,
        optimizer=lambda net: torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE),
        global_batch=GLOBAL_BATCH,
        epochs=1,
    )


def variants(data: list[dict[str, Any]]) -> dict[str, Callable[[float], Steps]]:
    """By name; each takes the dropout."""
    inline = LoaderSettings(workers=0)
    auto = replace(Run(job(data, 0.1), "auto", device="cuda").plan, loader=inline)
    rounded = replace(Run(job(data, 0.1), "auto", device="cuda", allow=("bf16",)).plan, loader=inline)
    for reason in rounded.reasons:
        print("  ", reason)
    return {
        "tutorial: 8×4, padding to 512, fp32": lambda d: tutorial(data, width=LONGEST, dropout=d, bf16=False),
        "dynamic padding, fp32": lambda d: tutorial(data, width=None, dropout=d, bf16=False),
        "nearpeak auto, fp32": lambda d: ours(data, dropout=d, plan=auto),
        "tutorial: 8×4, padding to 512, bf16": lambda d: tutorial(data, width=LONGEST, dropout=d, bf16=True),
        "dynamic padding, bf16": lambda d: tutorial(data, width=None, dropout=d, bf16=True),
        "nearpeak auto, bf16 allowed": lambda d: ours(data, dropout=d, plan=rounded),
    }


def measure(running: dict[str, Steps], repeats: int) -> dict[str, list[float]]:
    """Milliseconds per step: a first turn unmeasured, then turns of some steps each."""
    times_ms: dict[str, list[float]] = {name: [] for name in running}
    for repeat in range(repeats + 1):
        for name, steps in running.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS_A_TURN):
                next(steps)
            torch.cuda.synchronize()
            if repeat:
                times_ms[name].append(1e3 * (time.perf_counter() - start) / STEPS_A_TURN)
    return times_ms


def largest_difference(made: dict[str, Callable[[float], Steps]], names: tuple[str, str], steps: int) -> float:
    """Of the two variants' losses, with dropout 0."""
    losses = []
    for name in names:
        running = made[name](0.0)
        losses.append([next(running) for _ in range(steps)])
    return max(abs(float(a) - float(b)) for a, b in zip(*losses, strict=True))  # type: ignore[arg-type]


def main() -> None:
    arguments = options(__doc__ or "").parse_args()
    if not torch.cuda.is_available():
        print("finetune_gpu: no CUDA device here; nothing measured.")
        sys.exit(0)
    data = texts(12_000)
    made = variants(data)
    times_ms = measure({name: make(0.1) for name, make in made.items()}, 1 if arguments.quick else 7)
    typical = {name: median(times) for name, times in times_ms.items()}
    base, base_bf16 = (f"tutorial: 8×4, padding to 512, {precision}" for precision in ("fp32", "bf16"))
    dynamic = {name: typical["dynamic padding, bf16" if "bf16" in name else "dynamic padding, fp32"] for name in made}
    rows = [[n, f"{ms:.1f}", f"{typical[base] / ms:.1f}", f"{dynamic[n] / ms:.2f}"] for n, ms in typical.items()]
    title = f"bert-base on {torch.cuda.get_device_name()}, ms per optimizer step of {GLOBAL_BATCH} texts"
    print_table(title, ["variant", "ms/step", "× tutorial", "× dynamic"], rows)
    ours_fp32, ours_bf16 = "nearpeak auto, fp32", "nearpeak auto, bf16 allowed"
    names = ("dynamic padding, fp32", ours_fp32)
    deviation = largest_difference(made, names, 3 if arguments.quick else 20)
    targets = [
        Target("fp32 against the tutorial settings", typical[base] / typical[ours_fp32], 4),
        Target("bf16 against the tutorial settings in bf16", typical[base_bf16] / typical[ours_bf16], 2),
        Target("fp32 against dynamic padding", typical["dynamic padding, fp32"] / typical[ours_fp32], 2),
        Target("losses over 20 steps in fp32, largest difference", deviation, 1e-4, at_most=True),
    ]
    finish(targets, {"ms_per_step": times_ms, "loss_difference": deviation}, arguments.json)


if __name__ == "__main__":
    main()
