"""Decisions on timm's RTX 3090 rows: each batch is the largest of a descending ladder that fitted."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from _memory_rows import CASES, MIB

from nearpeak.errors import NearpeakError
from nearpeak.predict.capture import capture_all
from nearpeak.predict.memory import STEPS, peaks
from nearpeak.predict.played import fits_in
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace, repeated

FIRST_OF_LADDER = 512
"""No row has more, models of a tenth of the memory included: the next size up of these was never tried."""
MODELS_A_PROCESS = 3
ANOTHER_SINCE = ("tresnet",)
"""Models that timm built from other layers then: TResNet had in-place normalisation, which keeps no input."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A size that is known to fit, or known not to."""

    model: str
    batch: int
    fitted: bool
    needed_mib: float
    """The smallest device on which the steps run."""


def fits_figures(models: int, seed: int) -> dict[str, Any]:
    """Each model's threshold comes from the other models. The rows are of torch 1.12: attention was not fused yet."""
    os.environ["TIMM_FUSED_ATTN"] = "0"
    decisions, failed = _decisions(models, seed)
    wrong: list[tuple[str, float]] = []
    for each in decisions:
        threshold = best_threshold([other for other in decisions if other.model != each.model])
        if (each.needed_mib <= threshold) != each.fitted:
            wrong.append((f"{each.model} ×{each.batch}", abs(each.needed_mib / threshold - 1)))
    right = 1 - len(wrong) / max(1, len(decisions))
    needs = [(each.model, each.batch, each.fitted, round(each.needed_mib)) for each in decisions]
    return {"decisions": len(decisions), "right_share": right, "wrong": wrong, "failed": failed, "needs": needs}


def best_threshold(decisions: list[Decision]) -> float:
    """The capacity by which most come out right; the middle of the widest such stretch between two needs."""
    edges = sorted(each.needed_mib for each in decisions)
    scores = [sum((d.needed_mib <= edge) == d.fitted for d in decisions) for edge in edges]
    best = [index for index, score in enumerate(scores) if score == max(scores)]
    stretches = [(edges[index], edges[min(index + 1, len(edges) - 1)]) for index in best]
    low, high = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    return (low + high) / 2


def _decisions(models: int, seed: int) -> tuple[list[Decision], list[str]]:
    with (CASES / "speed/measured.csv").open() as file:
        of_card = [row for row in csv.DictReader(file) if row["source"] == "timm" and row["gpu"] == "RTX3090"]
    rows = [row for row in of_card if not row["model"].startswith(ANOTHER_SINCE)]
    chosen = random.Random(seed).sample(rows, min(models, len(rows)))
    decisions: list[Decision] = []
    failed: list[str] = []
    for begin in range(0, len(chosen), MODELS_A_PROCESS):
        asked = [(row, batch) for row in chosen[begin : begin + MODELS_A_PROCESS] for batch in _sizes(row)]
        captured = capture_all([_request(row, batch) for row, batch in asked], time_limit_s=180)
        for (row, batch), result in zip(asked, captured, strict=True):
            if isinstance(result, NearpeakError):
                failed.append(f"{row['model']} ×{batch}: {str(result)[:160]}")
            else:
                fitted = batch == int(float(row["batch_per_gpu"]))
                decisions.append(Decision(row["model"], batch, fitted, needed_bytes(result) / MIB))
    return decisions, failed


def _sizes(row: dict[str, str]) -> Iterator[int]:
    fitted = int(float(row["batch_per_gpu"]))
    yield fitted
    if fitted < FIRST_OF_LADDER:
        yield next_up(fitted)


def next_up(batch: int) -> int:
    """The ladder is 512, 384, 256, 192, …: powers of two and the middles between."""
    power = 1 << (batch.bit_length() - 1)
    return power * 2 if batch > power or batch == 1 else power + power // 2


def _request(row: dict[str, str], batch: int) -> CaptureRequest:
    """Gradients were set to zero, not given back (torch 1.12), as between two micro-batches of a step."""
    last = "NHWC" in row["stack"]
    image = int(float(row["seq_or_res"]))
    return CaptureRequest(
        model="benchmarks._memory_programs:timm_benchmark",
        kind="function",
        overrides={"model": row["model"], "batch": batch, "image": image, "channels_last": last},
        precision="fp16",
        micro_batches=2,
        channels_last=last,
        cudnn_benchmark=True,
        compute_capability=(8, 6),
    )


def needed_bytes(trace: StepTrace) -> int:
    """The smallest memory in which the steps run: cached blocks are given back where it gets full."""
    played = peaks(trace, outputs_until="step_end")
    steps = repeated(trace, STEPS, outputs_until="step_end")
    low, high = played.peak_allocated, played.peak_reserved
    while high - low > max(8 * MIB, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if fits_in(steps, middle) else (middle, high)
    return high
