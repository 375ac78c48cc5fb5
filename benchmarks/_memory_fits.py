"""Decisions on timm's RTX 3090 rows: each batch is the largest of a descending ladder that fitted."""

from __future__ import annotations

import csv
import os
import random
from dataclasses import dataclass, replace
from typing import Any

from _memory_rows import CASES, MIB

from nearpeak.errors import NearpeakError
from nearpeak.predict.capture import capture_all
from nearpeak.predict.memory import peaks
from nearpeak.predict.played import extrapolated
from nearpeak.predict.request import CaptureRequest

PROBES = (2, 4)
FIRST_OF_LADDER = 1024
LARGEST_MISS = 0.05


@dataclass(frozen=True, slots=True)
class Decision:
    """A size that is known to fit, or known not to."""

    model: str
    batch: int
    fitted: bool
    needed_mib: float


def fits_figures(models: int, seed: int) -> dict[str, Any]:
    """Each model's threshold comes from the other models. The rows are of torch 1.12: attention was not fused yet."""
    os.environ["TIMM_FUSED_ATTN"] = "0"
    decisions, failed = _decisions(models, seed)
    wrong: list[tuple[str, float]] = []
    for each in decisions:
        threshold = _best_threshold([other for other in decisions if other.model != each.model])
        if (each.needed_mib <= threshold) != each.fitted:
            wrong.append((f"{each.model} ×{each.batch}", abs(each.needed_mib / threshold - 1)))
    right = 1 - len(wrong) / max(1, len(decisions))
    return {"decisions": len(decisions), "right_share": right, "wrong": wrong, "failed": failed}


def _best_threshold(decisions: list[Decision]) -> float:
    """The capacity by which most come out right; the middle of the best stretch."""
    edges = sorted(each.needed_mib for each in decisions)
    scored = [(sum((d.needed_mib <= edge) == d.fitted for d in decisions), edge) for edge in edges]
    best = max(score for score, _ in scored)
    good = [edge for score, edge in scored if score == best]
    return (good[0] + good[-1]) / 2


def _decisions(models: int, seed: int) -> tuple[list[Decision], int]:
    with (CASES / "speed/measured.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "timm" and row["gpu"] == "RTX3090"]
    chosen = random.Random(seed).sample(rows, min(models, len(rows)))
    decisions: list[Decision] = []
    failed = 0
    for row in chosen:
        needs = _needs(row)
        if needs is None:
            failed += 1
            continue
        fitted = int(float(row["batch_per_gpu"]))
        decisions.append(Decision(row["model"], fitted, True, needs[0]))
        if needs[1] is not None:
            decisions.append(Decision(row["model"], next_up(fitted), False, needs[1]))
    return decisions, failed


def next_up(batch: int) -> int:
    """The ladder is 1024, 768, 512, 384, …: powers of two and the middles between."""
    power = 1 << (batch.bit_length() - 1)
    return power * 2 if batch > power else power + power // 2


def _needs(row: dict[str, str]) -> tuple[float, float | None] | None:
    """(MiB at the size that fitted, MiB at the next up); by two small steps drawn on."""
    request = CaptureRequest(
        model=row["model"],
        kind="timm",
        image=int(float(row["seq_or_res"])),
        precision="fp16",
        optimizer="sgd-momentum",
        implementation="for-loop",
        channels_last="NHWC" in row["stack"],
        cudnn_benchmark=True,
        compute_capability=(8, 6),
    )
    small, large = capture_all([replace(request, batch=batch) for batch in PROBES], time_limit_s=180)
    if isinstance(small, NearpeakError) or isinstance(large, NearpeakError):
        return None
    fitted = int(float(row["batch_per_gpu"]))
    needed: list[float] = []
    for batch in (fitted, next_up(fitted)):
        trace = extrapolated(small, PROBES[0], large, PROBES[1], batch)
        if trace is None:
            return None
        needed.append(peaks(trace).peak_allocated / MIB)
    return needed[0], None if fitted >= FIRST_OF_LADDER else needed[1]
