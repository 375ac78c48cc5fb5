"""What a prediction costs: `nearpeak predict memory` as a user runs it, and of the same model with twice the layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil
from _table import Target, print_table

__all__ = ["speed_figures"]

GIB = 1 << 30
LOOKED_EVERY_S = 0.05
TEXT = ("--batch", "32", "--seq", "128")
LLAMA = ("Llama-3-8B", "--batch", "1", "--seq", "1024", "--precision", "bf16-weights")

MODELS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "bert-base": (("bert-base", *TEXT), {"num_hidden_layers": 24}),
    "ResNet-50": (("resnet50", "--batch", "32"), {"depths": [6, 8, 12, 6]}),
    "GPT-2": (("gpt2", "--batch", "8", "--seq", "1024"), {"n_layer": 24}),
    "ViT-B": (("vit-b", "--batch", "32"), {"num_hidden_layers": 24}),
    "ConvNeXt-T": (("convnext-t", "--batch", "32"), {"depths": [6, 6, 18, 6]}),
    "T5-small": (("t5-small", *TEXT), {"num_layers": 12, "num_decoder_layers": 12}),
    "Llama-3-8B": (LLAMA, {"num_hidden_layers": 64}),
    "Llama-3-8B LoRA": ((*LLAMA, "--lora", "16"), {"num_hidden_layers": 64}),
    "ModernBERT": (("ModernBERT-base", "--batch", "8", "--seq", "512"), {"num_hidden_layers": 44}),
}
"""Name → (arguments of the command, settings that double its layers)"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one prediction, both of its processes together."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    parameters: int


def speed_figures(repeats: int, models: int | None = None) -> tuple[dict[str, Any], list[Target]]:
    """Both sizes of each model in turns, `repeats` times; the median of each."""
    costs: dict[str, dict[str, list[Cost]]] = {name: {"once": [], "twice": []} for name in list(MODELS)[:models]}
    for _ in range(repeats):
        for name, sizes in costs.items():
            arguments, doubled = MODELS[name]
            sizes["once"].append(_cost(arguments))
            sizes["twice"].append(_cost((*arguments, *_settings(doubled))))
    figures = {name: _figures(sizes) for name, sizes in costs.items()}
    _print(figures)
    return {"speed": figures}, _targets(figures)


def _settings(settings: dict[str, Any]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--set", f"{name}={json.dumps(value)}")]


def _cost(arguments: tuple[str, ...]) -> Cost:
    """A fresh process, imports and its subprocess counted."""
    command = [sys.executable, "-m", "nearpeak", "predict", "memory", *arguments, "--gpu", "A100 80GB", "--json"]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(command, stdout=said, stderr=complained)
        most, usage = _watched(process)
        wall_s = time.perf_counter() - start
        said.seek(0), complained.seek(0)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {complained.read().decode()[-300:]}")
        parameters = json.load(said)["parameters"]
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, most, parameters)


def _watched(process: subprocess.Popen[bytes]) -> tuple[int, Any]:
    """(most memory held until it ended, what it used)"""
    most = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return most, usage
        most = max(most, _held_bytes(process.pid))
        time.sleep(LOOKED_EVERY_S)


def _held_bytes(pid: int) -> int:
    """Resident memory of a process and what it started; what has just ended holds none."""
    try:
        process = psutil.Process(pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0


def _figures(sizes: dict[str, list[Cost]]) -> dict[str, float]:
    once, twice = sizes["once"], sizes["twice"]
    return {
        "wall_s": median(each.wall_s for each in once),
        "cpu_s": median(each.cpu_s for each in once),
        "twice_wall_s": median(each.wall_s for each in twice),
        "twice_cpu_s": median(each.cpu_s for each in twice),
        "wall_ratio": median(b.wall_s / a.wall_s for a, b in zip(once, twice, strict=True)),
        "cpu_ratio": median(b.cpu_s / a.cpu_s for a, b in zip(once, twice, strict=True)),
        "parameters_ratio": twice[0].parameters / once[0].parameters,
        "memory_gib": max(each.memory_bytes for each in (*once, *twice)) / GIB,
    }


def _print(figures: dict[str, dict[str, float]]) -> None:
    rows = [
        [
            name,
            *(f"{each[key]:.1f}" for key in ("wall_s", "cpu_s", "twice_wall_s", "twice_cpu_s")),
            *(f"{each[key]:.2f}" for key in ("wall_ratio", "cpu_ratio", "memory_gib")),
        ]
        for name, each in figures.items()
    ]
    columns = ["model", "s", "CPU s", "twice the layers: s", "CPU s", "ratio", "CPU ratio", "GiB"]
    print_table("A prediction, its process started anew", columns, rows)


def _targets(figures: dict[str, dict[str, float]]) -> list[Target]:
    def worst(key: str) -> float:
        return max(each[key] for each in figures.values())

    return [
        Target("slowest prediction, s", worst("wall_s"), 15, at_most=True),
        Target("slowest prediction, CPU s", worst("cpu_s"), 15, at_most=True),
        Target("twice the layers, times the wall time", worst("wall_ratio"), 1.5, at_most=True),
        Target("twice the layers, times the CPU time", worst("cpu_ratio"), 1.5, at_most=True),
        Target("most memory, GiB", worst("memory_gib"), 4, at_most=True),
    ]
