"""Measured runs → the requests that reconstruct them, and how predictions of many rows are made and compared."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nearpeak.errors import NearpeakError
from nearpeak.predict.capture import capture_all
from nearpeak.predict.cards import card_named
from nearpeak.predict.memory import peaks
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace

CASES = Path(__file__).resolve().parents[1] / "../shared/cases"
MIB = 1 << 20
PROCESS_ROWS = 6
"""Captures that share a process; a crash costs at most so many."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A measured run with what was predicted of it."""

    row: dict[str, str]
    reserved_mib: float
    allocated_mib: float
    parameters: int
    trainable: int

    @property
    def measured_mib(self) -> float:
        return float(self.row["measured_MiB"])


def measured_rows() -> list[dict[str, str]]:
    """All of memory/measured.csv."""
    with (CASES / "memory/measured.csv").open() as file:
        return list(csv.DictReader(file))


def predict_rows(rows: Sequence[tuple[dict[str, str], CaptureRequest]]) -> tuple[list[Predicted], list[str]]:
    """(predictions, why others could not be made)"""
    done: list[Predicted] = []
    failed: list[str] = []
    for begin in range(0, len(rows), PROCESS_ROWS):
        chunk = rows[begin : begin + PROCESS_ROWS]
        results = capture_all([request for _, request in chunk], time_limit_s=90)
        for (row, _), result in zip(chunk, results, strict=True):
            if isinstance(result, NearpeakError):
                failed.append(str(result)[:160])
            else:
                done.append(_predicted(row, result))
    return done, failed


def _predicted(row: dict[str, str], trace: StepTrace) -> Predicted:
    played = peaks(trace)
    sizes = (played.peak_reserved / MIB, played.peak_allocated / MIB)
    return Predicted(row, *sizes, trace.parameters, trace.trainable_parameters)


def errors_with_offset(predicted: Sequence[Predicted], card_mib: float | None = None) -> list[float]:
    """|predicted − measured| ÷ measured, the one constant fitted without the rows of the model that is tested.

    No run holds more than its card has: one that needs more fills it before it fails.
    """
    errors: list[float] = []
    for each in predicted:
        others = [o.measured_mib - o.reserved_mib for o in predicted if o.row["model"] != each.row["model"]]
        total = each.reserved_mib + (median(others) if others else 0.0)
        shown = total if card_mib is None else min(total, card_mib)
        errors.append(abs(shown - each.measured_mib) / each.measured_mib)
    return errors


def usable_mib(card: str) -> float:
    """What programs get of a card."""
    return card_named(card).usable_bytes / MIB


def finished(predicted: Sequence[Predicted]) -> list[Predicted]:
    """Runs of an optimizer with momentum that did a step: they must hold weights, gradients and momentum, 12 bytes a
    parameter, beside what the smallest run of the table holds. This asks the number of parameters and nothing else."""
    smallest = min(float(row["measured_MiB"]) for row in measured_rows() if row["metric"] == "nvidia_smi_max")
    return [each for each in predicted if each.measured_mib - smallest >= 12 * each.parameters / MIB]


def other_errors(rows: Iterable[dict[str, str]]) -> dict[str, list[float]]:
    """The same for each other estimator that said something of these rows."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for column, text in row.items():
            if column.startswith("pred_") and text:
                error = abs(float(text) - float(row["measured_MiB"])) / float(row["measured_MiB"])
                found.setdefault(column.removeprefix("pred_"), []).append(error)
    return found


def share(values: Sequence[float], quantile: float) -> float:
    """A quantile by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


# -- reconstructing ----------------------------------------------------------------------------------------------------

OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "RMSprop": "rmsprop", "Adagrad": "adagrad"}


TORCHVISION = """
convnext_tiny convnext_small convnext_base convnext_large vgg11 vgg13 vgg16 vgg19 resnet18 resnet34 resnet50 resnet101
resnet152 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3
regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf regnet_x_8gf regnet_x_16gf regnet_x_32gf regnet_y_400mf
regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf regnet_y_16gf regnet_y_32gf
"""


def xmem_request(row: dict[str, str]) -> CaptureRequest | None:
    """Torch 2.6, fp32, padded to the longest of the batch; vision models are torchvision's."""
    optimizer = OPTIMIZERS.get(row["optimizer"])
    if optimizer is None:
        return None
    image = re.match(r"(\d+)x\d+", row["seq_or_res"])
    kind: Any = "torchvision" if image else "huggingface"
    name = _torchvision_name(row["model"]) if image else row["model"]
    return CaptureRequest(
        model=name,
        kind=kind,
        batch=int(float(row["batch"])),
        image=int(image.group(1)) if image else None,
        sequence=None if image else 128,
        optimizer=optimizer,
        compute_capability=(8, 6) if "3060" in row["gpu"] else (8, 0),
    )


def _torchvision_name(name: str) -> str:
    """`ConvNeXtBase` → `convnext_base`, `ResNet101` → `resnet101`, `MobileNetV3Large` → `mobilenet_v3_large`."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((each for each in TORCHVISION.split() if each.replace("_", "") == plain), name)


def timm_rows(count: int, seed: int) -> list[tuple[dict[str, str], CaptureRequest]]:
    """A sample of the A100's rows. Left out: runs that ended before a step was done, which shows in a measured peak
    below what another estimator counts for tensors alone."""
    rows = [
        row
        for row in measured_rows()
        if row["metric"] == "nvidia_smi_max"
        and row["optimizer"].startswith("timm")
        and float(row["measured_MiB"]) > float(row["pred_FakeTensor"] or 0)
    ]
    chosen = random.Random(seed).sample(rows, min(count, len(rows)))
    return [(row, _timm_request(row)) for row in chosen]


def _timm_request(row: dict[str, str]) -> CaptureRequest:
    return CaptureRequest(
        model="benchmarks._memory_programs:timm_training",
        kind="function",
        overrides={"model": row["model"], "batch": int(float(row["batch"]))},
        cudnn_benchmark=True,
    )


PEFT_RESULTS = "method_comparison/MetaMathQA/results"
PEFT_TOKENS = 640
"""Of the longest batch, which no row states; all runs saw the same data. Chosen on the row `lora … rank32` alone."""


def peft_request(row: dict[str, str], folder: Path) -> CaptureRequest | None:
    """A run of PEFT's comparison of methods, from the result file in a checkout of PEFT."""
    if not row["path"].startswith(PEFT_RESULTS) or row["metric"] != "max_reserved_minus_init":
        return None
    return CaptureRequest(
        model="benchmarks._memory_peft:build",
        kind="function",
        overrides={"result": str(folder / row["path"]), "tokens": PEFT_TOKENS},
        clip_norm=1.0,
        compute_capability=(8, 9),
    )


def litgpt_request(row: dict[str, str], folder: Path) -> CaptureRequest | None:
    """A run of LitGPT on one device, from its configuration file in a checkout of LitGPT."""
    name, _, file = row["model"].partition("/")
    if file != "lora.yaml" or row["gpu"] != "1xA10G" or not row["measured_MiB"]:
        return None
    hub = folder / "config_hub/finetune"
    known = {path.name.lower(): path for path in hub.iterdir()} if hub.is_dir() else {}
    return CaptureRequest(
        model="benchmarks._memory_litgpt:build",
        kind="function",
        overrides={"config": str(known.get(name.lower(), hub / name) / file), "tokens": 512},
        micro_batches=2,
        compute_capability=(8, 6),
    )


def schedtune_request(row: dict[str, str]) -> CaptureRequest:
    """224-pixel images by the size of the batch's input; the optimizer is not stated: SGD with momentum."""
    return CaptureRequest(
        model=row["model"], kind="torchvision", batch=int(float(row["batch"])), optimizer="sgd-momentum"
    )
