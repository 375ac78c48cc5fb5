"""Optimizer, schedule, lengths and class order of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.errors import SettingError
from nearpeak.tasks.text_classification.config import load_config
from nearpeak.tasks.text_classification.preparing import SCHEDULES, Prepared, adamw, prepare, warmup_steps


def rates(name: str, warmup: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = SCHEDULES[name](warmup)(optimizer, steps)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def test_schedules_by_hand() -> None:
    assert rates("linear", 2, 6) == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25])
    assert rates("linear", 0.0, 4) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert rates("constant", 0.5, 4) == pytest.approx([0, 0.5, 1, 1])
    assert rates("cosine", 0, 4) == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert [warmup_steps(share, 10) for share in (0, 0.06, 0.5, 1, 3, 3.0)] == [0, 1, 5, 1, 3, 3]


def test_the_linear_schedule_is_that_of_transformers() -> None:
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 3, 11).lr_lambdas[0]
    assert rates("linear", 3, 11) == pytest.approx([theirs(step) for step in range(11)])


def test_only_matrices_decay() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    model[0].weight.requires_grad = False
    make = adamw(0.1, 0.01)
    decayed, spared = make(model).param_groups
    assert [weight.shape for weight in decayed["params"]] == [(4, 4)]
    assert [weight.shape for weight in spared["params"]] == [(4,)] * 3
    assert (decayed["weight_decay"], spared["weight_decay"], decayed["lr"]) == (0.01, 0.0, 0.1)
    assert make.__qualname__ == "AdamW(lr=0.1, weight_decay=0.01)"


def prepared(job_file: Callable[..., Path], **sections: Any) -> Prepared:
    return prepare(load_config(job_file(**sections)))


def test_lengths_and_rates_have_their_reasons(job_file: Callable[..., Path], tiny_model: Path) -> None:
    found = prepared(job_file, job={"learning_rate": None})
    reasons = {reason.choice: reason.because for reason in found.reasons}
    assert "data.max_length=64" in reasons
    assert reasons["job.learning_rate=0.0005"] == "usual for a small model with random weights"
    assert any("at most" in note for note in found.notes)
    trained = prepared(
        job_file, job={"learning_rate": None}, model={"from_config": None, "name_or_path": str(tiny_model)}
    )
    assert "job.learning_rate=5e-05" in {reason.choice for reason in trained.reasons}


def test_cut_texts_are_reported(job_file: Callable[..., Path]) -> None:
    found = prepared(job_file, data={"max_length": 6})
    assert any("texts are longer than 6 tokens and were cut" in note for note in found.notes)
    assert max(found.encoded["train"].lengths) == 6


def test_longer_than_the_model_can_take(job_file: Callable[..., Path]) -> None:
    with pytest.raises(SettingError, match="data.max_length=100: the model takes at most 64 tokens"):
        prepared(job_file, data={"max_length": 100})


@pytest.mark.parametrize(
    ("output", "data", "message"),
    [
        ({"save_best_by": "accuracy"}, {}, "needs data.validation"),
        ({"save_best_by": "rmse"}, {"validation_fraction": 0.25}, "a single_label problem has accuracy, macro_f1"),
    ],
)
def test_metrics_that_the_problem_lacks(
    job_file: Callable[..., Path], output: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        prepared(job_file, output=output, data=data)


def test_clipping_can_be_switched_off(job_file: Callable[..., Path]) -> None:
    assert prepared(job_file, job={"clip_norm": 0}).job.clip_norm is None
