"""Each sample weighs in the gradient what it does in transformers' own: nine heads, three tasks, one and two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from trainer_tools import HEADS, TASKS, make_model, make_rows, sample_gradients, train, weights

from nearpeak.integrations.huggingface import Trainer

SAMPLES = 10
"""Batches of 3 in windows of 2: the second window is short, and its last batch holds one sample."""


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("head", HEADS)
def test_each_sample_keeps_its_weight(head: str, task: str, tmp_path: Path) -> None:
    rows = make_rows(SAMPLES, task)
    model = make_model(head, task)
    _, plain = train(transformers.Trainer, model, rows, tmp_path)
    trainer, ours = train(Trainer, model, rows, tmp_path)
    assert trainer.nearpeak.regrouped == trainer.nearpeak.windows == 2
    assert not any("not packed" in str(reason) for reason in trainer.nearpeak.reasons)
    samples = sample_gradients(model, rows)
    for expected, gradient in zip(plain.gradients, ours.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(weights(gradient, samples), weights(expected, samples), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scaled", [None, False])
def test_the_weights_are_those_of_the_formula(scaled: bool | None, tmp_path: Path) -> None:
    class Corrected(Trainer):
        loss_is_scaled_for_ga = scaled

    rows = make_rows(SAMPLES)
    model = make_model("bert")
    trainer, ours = train(Corrected, model, rows, tmp_path)
    samples = sample_gradients(model, rows)
    first, second = (weights(gradient, samples).sort().values for gradient in ours.gradients)
    # The loss is the mean of each batch, and transformers does not divide it unless it is told to.
    share = 1.0 if scaled is None else 0.5
    expected_first = torch.tensor([0] * 4 + [share / 3] * 6, dtype=torch.float64)
    expected_second = torch.tensor([0] * 6 + [share / 3] * 3 + [share], dtype=torch.float64)
    torch.testing.assert_close(first, expected_first, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(second, expected_second, rtol=1e-6, atol=1e-8)
    named = [reason for reason in trainer.nearpeak.reasons if reason.choice == "gradient_scale=2"]
    assert len(named) == (scaled is None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_keep_every_weight(tmp_path: Path) -> None:
    """One job of two gloo processes goes through all heads and tasks."""
    script = Path(__file__).with_name("two_ranks.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        str(tmp_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == len(HEADS) * len(TASKS)
    for result in results:
        assert result["regrouped"] == result["windows"] == 2, result
        assert result["gradient"] < 1e-9, result
        assert result["weight"] < 1e-7, result
        assert result["loss"] < 1e-6, result  # logged in fp32
