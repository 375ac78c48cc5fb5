"""Predictions held against a real device: what torch says it allocated and reserved for the very same steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import steps

from nearpeak.predict.allocator import CachingAllocator
from nearpeak.predict.allocator_settings import AllocatorSettings
from nearpeak.predict.capture import capture
from nearpeak.predict.memory import forecast_memory, peaks
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def small_bert() -> Any:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
    ids = torch.zeros(16, 256, dtype=torch.long)
    return BertForMaskedLM(config), {"input_ids": ids, "labels": ids}


def convolutions() -> Any:
    import torch
    from torch import nn

    widths = (3, 64, 128, 256, 512)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        for a, b in pairwise(widths)
    ]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return model, (torch.zeros(64, 3, 224, 224), torch.zeros(64, dtype=torch.long))


def wide_perceptron() -> Any:
    return steps.perceptron(width=4096, layers=6)


def in_a_fresh_process(call: str) -> Any:
    """What a call of this file's returns. cuBLAS keeps its workspace from its first use to the end of a process: where
    other steps ran before, a step does not pay for it."""
    code = f"import json, test_memory_gpu as own; print('ANSWER', json.dumps(own.{call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("ANSWER")[2])


def real_peaks(name: str, autocast: bool) -> tuple[int, int]:
    """(allocated, reserved) at most in three real steps."""
    import torch
    from torch.utils._pytree import tree_map

    model, batch, *rest = globals()[name]()
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        moved = tree_map(lambda each: each.cuda(), batch)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            if rest:
                loss = rest[0](model, moved)
            elif isinstance(moved, dict):
                outputs = model(**moved)
                loss = outputs.loss
            else:
                loss = torch.nn.functional.cross_entropy(model(moved[0]), moved[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def captured(name: str, precision: Any) -> StepTrace:
    import torch

    request = CaptureRequest(
        model=f"test_memory_gpu:{name}",
        kind="function",
        precision=precision,
        compute_capability=torch.cuda.get_device_capability(),
    )
    return capture(request)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["wide_perceptron", "small_bert"])
def test_prediction_is_near_the_device(name: str, precision: Any) -> None:
    predicted = peaks(captured(name, precision))
    allocated, reserved = in_a_fresh_process(f"real_peaks({name!r}, {precision == 'bf16'})")
    assert predicted.peak_allocated == pytest.approx(allocated, rel=0.01)
    assert predicted.peak_reserved == pytest.approx(reserved, rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_interval_holds_what_convolutions_take(precision: Any) -> None:
    """The algorithm is cuDNN's choice, and with it the workspace."""
    predicted = forecast_memory(captured("convolutions", precision))
    _, reserved = in_a_fresh_process(f"real_peaks('convolutions', {precision == 'bf16'})")
    assert predicted.reserved.interval.low <= reserved <= predicted.reserved.interval.high


def differing_requests() -> list[tuple[int, int, int, int]]:
    """Random requests, in the settings of this process: where ours and the device's counts part."""
    import random

    import torch

    draw, simulated = random.Random(3), CachingAllocator(AllocatorSettings())
    live: list[tuple[Any, int]] = []
    parted = []
    for _ in range(400):
        if live and draw.random() < 0.45:
            tensor, address = live.pop(draw.randrange(len(live)))
            del tensor
            simulated.free(address)
        else:
            size = int(2 ** draw.uniform(8, 26))
            live.append((torch.empty(size, dtype=torch.uint8, device="cuda"), simulated.malloc(size)))
        ours = simulated.status.reserved, simulated.status.allocated
        real = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        parted += [] if ours == real else [(*ours, *real)]
    return parted


def test_allocator_serves_requests_as_the_device_does() -> None:
    assert in_a_fresh_process("differing_requests()") == []
