"""Random configurations of timm and transformers through the public capture: which run, what is said of the rest."""

from __future__ import annotations

import copy
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _table import Target, print_table

from nearpeak.errors import NearpeakError
from nearpeak.predict.capture import capture_all
from nearpeak.predict.known_models import TASKS
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace

__all__ = ["random_requests", "support_figures"]

TOGETHER = 2
"""Captures side by side."""
CHUNK = 5
"""Requests that share a process."""
PRECISIONS: Any = ("fp32", "bf16", "fp16", "bf16-weights", "fp16-weights")
OPTIMIZERS: Any = (
    ("adamw", "foreach"), ("adamw", "fused"), ("adamw", "for-loop"), ("adam", "foreach"), ("sgd", "foreach"),
    ("sgd-momentum", "foreach"), ("sgd-momentum", "fused"), ("rmsprop", "foreach"), ("adagrad", "foreach"),
    ("adamax", "foreach"), ("nadam", "foreach"), ("radam", "foreach"), ("adafactor", "for-loop"),
)  # fmt: skip
CAPABILITIES: Any = ((7, 5), (8, 0), (8, 9), (9, 0))
LAYERS = re.compile(r"(num_(hidden_|encoder_|decoder_)?layers|n_layers?|(en|de)coder_layers)")
WHERE = re.compile(r"operator \S+ in module \S+|no head to train|no gradient checkpointing|not done after")


def support_figures(count: int, seed: int, limit_s: float) -> tuple[dict[str, Any], list[Target]]:
    """`count` drawn configurations, half of timm, half of transformers."""
    with tempfile.TemporaryDirectory() as folder:
        requests = random_requests(count, seed, Path(folder))
        chunks = [requests[begin : begin + CHUNK] for begin in range(0, len(requests), CHUNK)]
        with ThreadPoolExecutor(TOGETHER) as pool:
            done = list(pool.map(lambda chunk: _captured(chunk, limit_s), chunks))
    results = [result for each, _ in done for result in each]
    late = sum(took_s > (limit_s + 60) * CHUNK for _, took_s in done)
    failed = {_name(q): str(r) for q, r in zip(requests, results, strict=True) if not isinstance(r, StepTrace)}
    unnamed = [name for name, said in failed.items() if not WHERE.search(said)]
    _print(requests, results, failed)
    targets = [
        Target("random configurations supported", 1 - len(failed) / len(requests), 0.9),
        Target("processes beyond their time limit", late, 0, at_most=True),
        Target("unsupported without what and where", len(unnamed), 0, at_most=True),
    ]
    return {"configurations": len(requests), "seed": seed, "failed": failed, "unnamed": unnamed}, targets


def _captured(requests: list[CaptureRequest], limit_s: float) -> tuple[list[StepTrace | NearpeakError], float]:
    start = time.monotonic()
    return capture_all(requests, time_limit_s=limit_s), time.monotonic() - start


def _name(request: CaptureRequest) -> str:
    task = f" {request.task}" if request.task else ""
    return f"{request.kind} {Path(request.model).name}{task} ×{request.batch} {request.precision} {request.optimizer}"


def _print(requests: list[CaptureRequest], results: list[Any], failed: dict[str, str]) -> None:
    drawn = Counter((r.kind, r.task or "classification") for r in requests)
    ran = Counter(
        (q.kind, q.task or "classification") for q, r in zip(requests, results, strict=True) if isinstance(r, StepTrace)
    )
    rows = [[f"{kind} {task}", str(number), str(ran[kind, task])] for (kind, task), number in sorted(drawn.items())]
    print_table("Random configurations", ["kind", "drawn", "supported"], rows)
    alone = sum(any("text alone" in risk for risk in r.risks) for r in results if isinstance(r, StepTrace))
    print(f"Of those supported, {alone} were given no image or sound, and say so. Not supported:")
    for name, said in failed.items():
        print(f"  {name}: {said.removeprefix(name)[-260:]}")


# -- what is drawn -----------------------------------------------------------------------------------------------------


def random_requests(count: int, seed: int, folder: Path) -> list[CaptureRequest]:
    """Half of timm, half of transformers, whose configurations are written to `folder`."""
    draw = random.Random(seed)
    images = [_timm_request(draw, name) for name in draw.sample(_timm_models(), count // 2)]
    return images + _transformers_requests(draw, count - len(images), folder)


def _timm_models() -> list[str]:
    code = (
        "from nearpeak.predict.pretend.vision import stand_in_for_torchvision as s; s(); import timm;"
        "print(' '.join(timm.list_models()))"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return listed.stdout.split()


def _training(draw: random.Random) -> dict[str, Any]:
    """How a step is trained."""
    optimizer, implementation = draw.choice(OPTIMIZERS)
    return {
        "batch": draw.choice((2, 3, 4, 8, 16)),
        "precision": draw.choice(PRECISIONS),
        "optimizer": optimizer,
        "implementation": implementation,
        "micro_batches": draw.choice((1, 1, 2)),
        "clip_norm": draw.choice((None, 1.0)),
        "compute_capability": draw.choice(CAPABILITIES),
    }


def _timm_request(draw: random.Random, name: str) -> CaptureRequest:
    overrides = draw.choice(({}, {}, {"num_classes": draw.choice((10, 200))}, {"drop_rate": 0.1}))
    flags = {"channels_last": draw.random() < 0.3, "cudnn_benchmark": draw.random() < 0.3}
    return CaptureRequest(model=name, kind="timm", overrides=overrides, **flags, **_training(draw))


def _transformers_requests(draw: random.Random, count: int, folder: Path) -> list[CaptureRequest]:
    """Types of model are drawn alike, then one of their heads, then the configuration."""
    from nearpeak.predict.pretend.vision import mend_torchvision

    mend_torchvision()
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    heads = {task: getattr(transformers, auto)._model_mapping for task, (_, auto) in TASKS.items()}
    kinds = sorted(CONFIG_MAPPING.keys())
    draw.shuffle(kinds)
    requests: list[CaptureRequest] = []
    for kind in kinds:
        if len(requests) == count:
            break
        tasks = [task for task, mapping in heads.items() if task != "base" and CONFIG_MAPPING[kind] in mapping]
        config = _random_config(draw, CONFIG_MAPPING[kind])
        if not tasks or config is None:
            continue
        task = draw.choice(tasks)
        if not _can_be_made(heads[task][type(config)], config):
            continue
        config.save_pretrained(folder / kind)
        requests.append(_transformers_request(draw, heads[task][type(config)], str(folder / kind), task, config))
    return requests


def _can_be_made(model: Any, config: Any) -> bool:
    """Many configurations by default, and some of those drawn, are refused by the models of their own library."""
    import torch

    try:
        with torch.device("meta"):
            _one(model)(copy.deepcopy(config))
    except Exception:  # noqa: BLE001  what it raises is its own affair
        return False
    return True


def _one(models: Any) -> Any:
    return models[0] if isinstance(models, tuple) else models


def _transformers_request(draw: random.Random, model: Any, folder: str, task: str, config: Any) -> CaptureRequest:
    recomputes = getattr(_one(model), "supports_gradient_checkpointing", False) and draw.random() < 0.15
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    most = longest if isinstance(longest, int) and longest > 16 else 512  # some say -1: any length
    sequence = draw.choice([each for each in (16, 64, 100, 256) if each < most])
    signal = task in ("ctc", "audio-classification", "speech-seq2seq", "image-text-to-text")
    return CaptureRequest(
        model=folder, task=task, recompute=recomputes, sequence=None if signal else sequence, **_training(draw)
    )


def _random_config(draw: random.Random, kind: Any) -> Any:
    """None where the type has no configuration by default."""
    try:
        return kind(**_random_settings(draw, kind()))
    except Exception:  # noqa: BLE001  a configuration that its own class refuses is none
        return None


def _random_settings(draw: random.Random, config: Any) -> dict[str, Any]:
    """Fewer layers, other widths of plain transformers, other dropout and activation; parts of a whole likewise."""
    given = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if LAYERS.fullmatch(name) and isinstance(value, int) and value > 2:
            settings[name] = draw.choice([each for each in (2, 3, 4, 6) if each <= value])
        elif name.endswith("dropout") and isinstance(value, float):
            settings[name] = draw.choice((value, 0.0, 0.1))
        elif name == "hidden_act" and value in ("gelu", "silu", "relu"):
            settings[name] = draw.choice((value, "gelu", "silu", "relu"))
    settings |= _random_width(draw, given)
    for name, part in given.items():
        if name in getattr(config, "sub_configs", {}) and hasattr(part, "to_dict"):
            settings[name] = {"model_type": part.model_type, **_random_settings(draw, part)}
    return settings


def _random_width(draw: random.Random, given: dict[str, Any]) -> dict[str, int]:
    """Heads of the same size, but other in number, where nothing else of the configuration hangs on the width."""
    width, heads, inner = (given.get(name) for name in ("hidden_size", "num_attention_heads", "intermediate_size"))
    plain = all(isinstance(each, int) for each in (width, heads, inner)) and "head_dim" not in given
    if not plain or width % heads or given.get("num_key_value_heads", heads) != heads or "embedding_size" in given:
        return {}
    chosen = draw.choice([each for each in (2, 4, 8, 12, 16) if each <= 2 * heads])
    new = {"hidden_size": chosen * (width // heads), "num_attention_heads": chosen}
    if "num_key_value_heads" in given:
        new["num_key_value_heads"] = chosen
    return {**new, "intermediate_size": draw.choice((2, 3, 4)) * new["hidden_size"]}
