"""Fine-tuning a text classifier: nearpeak against the loop that tutorials show, and against transformers' Trainer.

    python benchmarks/finetune.py            everything: about 25 minutes on two cores
    python benchmarks/finetune.py --quick    one repeat of each

Part 1 (engine): one thread, CPU seconds per optimizer step, interleaved: every variant runs the same window, in turn.
Part 2 (losses): 20 steps with dropout 0, every step's loss against the tutorial loop's.
Part 3 (script): a whole Trainer script in its own process, as it is and under `nearpeak run --apply safe`; wall seconds
per step after the second, with the time until then beside it; one thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _table import Target, finish, options, print_table
from _texts import LONGEST, encoder, padded, texts

from nearpeak import Job, Plan, Run
from nearpeak.train.batches import default_collate
from nearpeak.train.order import SampleOrder
from nearpeak.train.precision import bf16_is_native

SAMPLES, GLOBAL_BATCH, MICRO_BATCH, LEARNING_RATE = 12_000, 32, 8, 5e-5
SCRIPT = Path(__file__).parent / "scripts" / "trainer_classification.py"
HAS_BF16 = bf16_is_native(torch.device("cpu"))[0]

Steps = Iterator[float]
"""Runs one optimizer step for each item and yields its mean loss."""


def tutorial(data: list[dict[str, Any]], *, width: int | None, dropout: float, bf16: bool = False) -> Steps:
    """The loop that tutorials show: a loader, gradient accumulation, AdamW."""
    model, order = encoder(dropout).train(), SampleOrder(len(data), GLOBAL_BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    parts = GLOBAL_BATCH // MICRO_BATCH
    for k in range(10**9):
        window = [data[i] if width is None else padded(data[i], width) for i in order.window(k).indices]
        total = 0.0
        for start in range(0, GLOBAL_BATCH, MICRO_BATCH):
            batch = default_collate(window[start : start + MICRO_BATCH])
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**batch).loss / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        yield total


def nearpeak_steps(data: list[dict[str, Any]], *, dropout: float, plan: Plan) -> Steps:
    """The same job under a plan."""
    for step in Run(job(data, dropout), plan, device="cpu"):
        yield step.loss


def job(data: list[dict[str, Any]], dropout: float) -> Job:
    return Job(
        model=encoder(dropout),
        data=data,
        loss=lambda model, batch: model(**batch).loss,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE),
        global_batch=GLOBAL_BATCH,
        epochs=1,
    )


def engine_variants(data: list[dict[str, Any]]) -> dict[str, Callable[[float], Steps]]:
    """Everything part 1 measures, by name; each takes the dropout."""
    auto = replace(Run(job(data, 0.1), "auto", device="cpu").plan, threads=1)
    for reason in auto.reasons:
        print("  ", reason)
    partition = replace(auto, micro_batching="partition", matmul="keep")
    steps, loop = partial(nearpeak_steps, data), partial(tutorial, data)
    variants = {
        "tutorial: 8×4, padding to 512, fp32": lambda d: loop(width=LONGEST, dropout=d),
        "dynamic padding, fp32": lambda d: loop(width=None, dropout=d),
        "nearpeak partition, fp32": lambda d: steps(dropout=d, plan=partition),
        "nearpeak packed, fp32": lambda d: steps(dropout=d, plan=replace(auto, micro_batching="packed", matmul="keep")),
        "nearpeak auto, fp32": lambda d: steps(dropout=d, plan=auto),
    }
    if HAS_BF16:
        variants |= {
            "dynamic padding, bf16": lambda d: loop(width=None, dropout=d, bf16=True),
            "nearpeak partition, bf16": lambda d: steps(dropout=d, plan=replace(partition, precision="bf16")),
            "nearpeak auto, bf16": lambda d: steps(dropout=d, plan=replace(auto, precision="bf16")),
        }
    return variants


def measure_engine(variants: dict[str, Callable[[float], Steps]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds per step: a first, unmeasured step each, then one step of each variant in turn."""
    running = {name: make(0.1) for name, make in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for repeat in range(repeats + 1):
        for name, steps in running.items():
            start = time.process_time()
            next(steps)
            if repeat:
                seconds[name].append(time.process_time() - start)
    return seconds


def measure_losses(variants: dict[str, Callable[[float], Steps]], names: list[str], steps: int) -> dict[str, float]:
    """Largest difference of any step's loss from the first variant's, with dropout 0."""
    torch.set_num_threads(os.cpu_count() or 1)
    losses = {}
    for name in names:
        running = variants[name](0.0)
        losses[name] = [next(running) for _ in range(steps)]
        print(f"   {name}: {losses[name][0]:.6f} … {losses[name][-1]:.6f}", flush=True)
    torch.set_num_threads(1)
    reference = losses[names[0]]
    return {name: max(abs(a - b) for a, b in zip(own, reference, strict=True)) for name, own in losses.items()}


SCRIPTS: dict[str, tuple[list[str], list[str]]] = {
    # name: (nearpeak's arguments or none for a plain run, the script's own)
    "tutorial settings, fp32": ([], ["--padding", "max_length"]),
    "dynamic padding, fp32": ([], ["--padding", "longest"]),
    "Trainer's best: dynamic, group_by_length, fp32": ([], ["--padding", "longest", "--group-by-length"]),
    "Trainer's best: dynamic, group_by_length, bf16": ([], ["--padding", "longest", "--group-by-length", "--bf16"]),
    "tutorial script, --apply safe": (["--apply", "safe"], ["--padding", "max_length"]),
    "tutorial script, --apply safe --precision bf16": (
        ["--apply", "safe", "--precision", "bf16"],
        ["--padding", "max_length"],
    ),
    "dynamic padding script, --apply safe": (["--apply", "safe"], ["--padding", "longest"]),
}


def measure_scripts(repeats: int) -> dict[str, dict[str, list[float]]]:
    """Wall seconds per step and until the end of the second step, one process each, in turn."""
    results: dict[str, dict[str, list[float]]] = {name: {"step_s": [], "start_s": []} for name in SCRIPTS}
    for _ in range(repeats):
        for name, (ours, theirs) in SCRIPTS.items():
            if "bf16" in name and not HAS_BF16:
                continue
            figures = _run_script(ours, theirs)
            for key in ("step_s", "start_s"):
                results[name][key].append(figures[key])
            print(f"   {name}: {figures['step_s']:.3f} s per step", flush=True)
    return {name: figures for name, figures in results.items() if figures["step_s"]}


def _run_script(ours: list[str], theirs: list[str]) -> dict[str, float]:
    # Padded to 512 every step costs the same: one after the second is enough.
    steps = "3" if theirs[:2] == ["--padding", "max_length"] and not ours else "8"
    command = [sys.executable, str(SCRIPT), "--steps", steps, *theirs]
    if ours:
        command = [sys.executable, "-m", "nearpeak", "run", *ours, "--", *command]
    # One thread, as in part 1: with as many as there are cores, any other process makes a step several times slower.
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ.copy(), check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"step_s"')]
    if done.returncode or not lines:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(lines[-1])


def _ratio_rows(seconds: dict[str, list[float]], tutorial_name: str, dynamic: Callable[[str], str]) -> list[list[str]]:
    rows = []
    for name, own in seconds.items():
        rows.append(
            [
                name,
                f"{median(own):.3f}",
                f"{_ratio(seconds, tutorial_name, name):.1f}",
                f"{_ratio(seconds, dynamic(name), name):.2f}",
            ]
        )
    return rows


def _ratio(seconds: dict[str, list[float]], base: str, name: str) -> float:
    """The median of the ratios taken within each repeat: what disturbs one variant mostly disturbs the other."""
    return median(b / own for b, own in zip(seconds[base], seconds[name], strict=True))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--part", choices=("engine", "losses", "script"), help="only this part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 1 if arguments.quick else 5
    data = texts(SAMPLES)
    targets: list[Target] = []
    figures: dict[str, Any] = {}
    if arguments.part in (None, "engine", "losses"):
        variants = engine_variants(data)
    if arguments.part in (None, "engine"):
        figures["engine_cpu_s"] = seconds = measure_engine(variants, repeats)
        targets += report_engine(seconds)
    if arguments.part in (None, "losses"):
        names = list(variants)[:5]
        figures["losses"] = deviations = measure_losses(variants, names, 3 if arguments.quick else 20)
        print_table(
            "Losses with dropout 0, largest difference from the tutorial's",
            ["variant", "difference"],
            [[n, f"{d:.1e}"] for n, d in deviations.items()],
        )
        targets.append(
            Target("losses over 20 steps in fp32, largest difference", max(deviations.values()), 1e-5, at_most=True)
        )
    if arguments.part in (None, "script"):
        figures["scripts"] = scripts = measure_scripts(repeats)
        targets += report_scripts(scripts)
    finish(targets, figures, arguments.json)


def report_engine(seconds: dict[str, list[float]]) -> list[Target]:
    """Part 1's table and targets."""
    names = list(seconds)
    rows = _ratio_rows(seconds, names[0], lambda name: "dynamic padding, bf16" if "bf16" in name else names[1])
    print_table("CPU seconds per optimizer step, one thread", ["variant", "s/step", "× tutorial", "× dynamic"], rows)
    targets = [
        Target("fp32 against the tutorial settings", _ratio(seconds, names[0], "nearpeak auto, fp32"), 14),
        Target("fp32 against dynamic padding", _ratio(seconds, names[1], "nearpeak auto, fp32"), 3),
    ]
    if HAS_BF16:
        targets += [
            Target("bf16 against the tutorial settings", _ratio(seconds, names[0], "nearpeak auto, bf16"), 20),
            Target(
                "bf16 against dynamic padding in bf16",
                _ratio(seconds, "dynamic padding, bf16", "nearpeak auto, bf16"),
                3,
            ),
        ]
    return targets


def report_scripts(scripts: dict[str, dict[str, list[float]]]) -> list[Target]:
    """Part 3's table and targets."""
    seconds = {name: figures["step_s"] for name, figures in scripts.items()}
    base, dynamic = "tutorial settings, fp32", "dynamic padding, fp32"
    rows = _ratio_rows(seconds, base, lambda name: dynamic)
    rows = [[*row, f"{median(scripts[row[0]]['start_s']):.1f}"] for row in rows]
    print_table(
        "Whole Trainer script, wall seconds", ["script", "s/step", "× tutorial", "× dynamic", "first two steps s"], rows
    )
    safe = "tutorial script, --apply safe"
    targets = [Target("--apply safe against the tutorial script", _ratio(seconds, base, safe), 11)]
    if HAS_BF16:
        targets.append(
            Target("--apply safe with bf16 against it", _ratio(seconds, base, f"{safe} --precision bf16"), 14)
        )
    targets.append(
        Target(
            "--apply safe against the script with dynamic padding",
            _ratio(seconds, dynamic, "dynamic padding script, --apply safe"),
            2.2,
        )
    )
    return targets


if __name__ == "__main__":
    main()
