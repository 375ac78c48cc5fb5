"""Whole trainings: each problem to a model that loads, and everything that can go wrong on the way."""

from __future__ import annotations

import errno
import json
import math
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearpeak.errors import DataError, LossNotFiniteError, OutOfMemoryError, SettingError
from nearpeak.plan import load_plan
from nearpeak.recording import Recording
from nearpeak.tasks.text_classification import preparing, saving, training
from nearpeak.tasks.text_classification.config import load_config
from nearpeak.tasks.text_classification.saving import SaveError
from nearpeak.tasks.text_classification.training import Outcome, Watcher, train

JobFile = Callable[..., Path]
Rows = list[dict[str, Any]]
SaveRows = Callable[[str, Rows], Path]


class Listener(Watcher):
    """Remembers what a training told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.saves: list[tuple[str, int]] = []
        self.begun = 0

    def begin(self, *ready: Any) -> None:
        self.begun += 1

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def saved(self, folder: Path, step: int) -> None:
        self.saves.append((folder.name, step))


def run(path: Path, *overrides: str, watcher: Watcher | None = None) -> Outcome:
    return train(load_config(path, overrides), watcher, device="cpu")


def predict(folder: Path, *texts: str) -> torch.Tensor:
    """Logits of one text or pair, as somebody else would compute them."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt")
    with torch.no_grad():
        return AutoModelForSequenceClassification.from_pretrained(folder)(**tokens).logits[0]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def test_single_label_learns_and_loads(
    job_file: JobFile, save_rows: SaveRows, topic_rows: Callable[..., Rows], tmp_path: Path
) -> None:
    save_rows("train.csv", topic_rows(120))
    save_rows("validation.jsonl", topic_rows(30, seed=1))
    save_rows("test.jsonl", topic_rows(30, seed=2))
    listener = Listener()
    outcome = run(
        job_file(
            data={"validation": "validation.jsonl", "test": "test.jsonl"},
            job={"epochs": 4, "optimizer_steps": None, "learning_rate": 0.01},
        ),
        watcher=listener,
    )
    folder = tmp_path / "model"
    assert outcome.metrics["test"]["accuracy"] > 0.8
    assert predict(folder, "hammer pliers saw").argmax() == 2
    config = config_of(folder)
    assert (config["id2label"], config["problem_type"]) == (
        {"0": "animal", "1": "fruit", "2": "tool"},
        "single_label_classification",
    )
    assert (outcome.job.optimizer_steps, outcome.totals.steps, outcome.totals.samples) == (60, 60, 480)
    assert "4 epochs × 120 samples ÷ global batch 8 = 60 optimizer steps" in outcome.job.formula
    assert listener.begun == 1
    assert listener.saves[-1] == ("model", outcome.best_step)
    _check_records(folder, outcome)


def _check_records(folder: Path, outcome: Outcome) -> None:
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test"]["accuracy"] == outcome.metrics["test"]["accuracy"]
    assert [entry["step"] for entry in metrics["history"]] == [15, 30, 45, 60]
    best = max(metrics["history"], key=lambda entry: (entry["accuracy"], -entry["loss"]))
    assert (best["step"], best["accuracy"]) == (metrics["step"], metrics["validation"]["accuracy"])
    assert load_plan(folder / "plan.json") == outcome.plan
    assert json.loads((folder / "job.json").read_text())["optimizer_steps"] == 60
    assert json.loads((folder / "train.json").read_text())["job.global_batch"] == 8
    recording = Recording(folder / "recording")
    assert [step.step for step in recording.steps()] == list(range(60))
    assert recording.ending is not None
    assert recording.ending.outcome == "finished"
    assert sorted(path.name for path in folder.parent.iterdir() if "model" in path.name) == ["model"]


def test_multi_label_of_a_separated_column(
    job_file: JobFile, save_rows: SaveRows, topic_rows: Callable[..., Rows], tmp_path: Path
) -> None:
    rows = topic_rows(40, topics=("fruit", "tool"))
    save_rows(
        "train.csv", [row | {"label": f"{row['label']}; thing" if row["label"] == "tool" else ""} for row in rows]
    )
    outcome = run(job_file(data={"label_separator": ";", "validation_fraction": 0.25}))
    assert set(outcome.metrics["validation"]["per_class"]) == {"tool", "thing"}
    assert config_of(tmp_path / "model")["problem_type"] == "multi_label_classification"
    assert predict(tmp_path / "model", "apple").shape == (2,)


def test_multi_label_of_several_columns(
    job_file: JobFile, save_rows: SaveRows, topic_rows: Callable[..., Rows], tmp_path: Path
) -> None:
    rows = topic_rows(24)
    save_rows(
        "train.jsonl",
        [{"text": row["text"], "fruit": row["label"] == "fruit", "long": len(row["text"]) > 50} for row in rows],
    )
    run(job_file(data={"train": "train.jsonl", "label": ["fruit", "long"]}))
    assert config_of(tmp_path / "model")["id2label"] == {"0": "fruit", "1": "long"}


def test_pairs_of_texts(
    job_file: JobFile, save_rows: SaveRows, topic_rows: Callable[..., Rows], tmp_path: Path
) -> None:
    rows = topic_rows(48)
    pairs = [first | {"other": second["text"], "label": int(i % 2)} for i, (first, second) in enumerate(pairwise(rows))]
    save_rows("train.csv", pairs)
    outcome = run(job_file(data={"text_pair": "other", "validation_fraction": 0.25, "test_fraction": 0.25}))
    assert predict(tmp_path / "model", "apple", "hammer").shape == (2,)
    assert set(outcome.metrics) == {"validation", "test"}
    assert config_of(tmp_path / "model")["id2label"] == {"0": "0", "1": "1"}


def test_regression(job_file: JobFile, save_rows: SaveRows, topic_rows: Callable[..., Rows], tmp_path: Path) -> None:
    rows = [row | {"label": len(row["text"].split()) / 10} for row in topic_rows(48)]
    save_rows("train.jsonl", rows)
    outcome = run(job_file(data={"train": "train.jsonl", "validation_fraction": 0.25}, job={"optimizer_steps": 30}))
    found = outcome.metrics["validation"]
    assert found["rmse"] == pytest.approx(math.sqrt(found["loss"]))
    assert predict(tmp_path / "model", "apple").shape == (1,)
    assert config_of(tmp_path / "model")["problem_type"] == "regression"


@pytest.mark.parametrize("model", [{"from_scratch": "tiny", "vocabulary": 200, "from_config": None}, {"weights": True}])
def test_from_scratch_and_from_weights(
    job_file: JobFile, tiny_model: Path, tmp_path: Path, model: dict[str, Any]
) -> None:
    settings = {"from_config": None, "name_or_path": str(tiny_model)} if "weights" in model else model
    run(job_file(model=settings, job={"optimizer_steps": 2}))
    assert predict(tmp_path / "model", "apple").shape == (3,)


def test_what_was_saved_is_what_was_trained(job_file: JobFile, tmp_path: Path) -> None:
    """The saved model alone reproduces the validation metrics that were written beside it."""
    from nearpeak.tasks.text_classification.preparing import prepare

    path = job_file(data={"validation_fraction": 0.5}, job={"optimizer_steps": 6})
    run(path)
    validation = prepare(load_config(path)).data.validation
    assert validation is not None
    logits = np.stack([predict(tmp_path / "model", text).numpy() for text in validation.texts])
    written = json.loads((tmp_path / "model" / "metrics.json").read_text())["validation"]
    assert training.score("single_label", logits, validation.labels)["loss"] == pytest.approx(written["loss"], rel=1e-5)


def test_two_trainings_of_one_file_are_the_same(job_file: JobFile) -> None:
    path = job_file(model={"from_scratch": "tiny", "vocabulary": 200, "from_config": None}, job={"optimizer_steps": 3})
    first, second = (run(path, f"output.folder={path.parent / name}") for name in "ab")
    assert first.totals.losses == second.totals.losses


def test_evaluating_changes_nothing_that_is_learned(job_file: JobFile) -> None:
    """Dropout, order and weights are the same whether or not anybody looks."""
    path = job_file(
        model={"from_scratch": "tiny", "vocabulary": 200, "from_config": None}, data={"validation_fraction": 0.3},
    )  # fmt: skip
    often = run(path, "output.evaluate_every=1", f"output.folder={path.parent / 'often'}")
    never = run(path, "output.evaluate_every=end", f"output.folder={path.parent / 'never'}")
    assert often.totals.losses == never.totals.losses


@pytest.mark.parametrize(
    ("remainder", "every", "expected"),
    [
        ("short", "epoch", [3, 6]),
        ("drop", "epoch", [2, 4]),
        ("carry", "epoch", [3, 5]),
        ("short", 4, [4, 6]),
        ("short", "end", [6]),
    ],
)
def test_when_models_are_evaluated(
    job_file: JobFile, tmp_path: Path, remainder: str, every: Any, expected: list[int]
) -> None:
    run(
        job_file(
            data={"validation": "train.csv"},
            job={"global_batch": 10, "epochs": 2, "optimizer_steps": None, "remainder": remainder},
            output={"evaluate_every": every},
        )
    )
    history = json.loads((tmp_path / "model" / "metrics.json").read_text())["history"]
    assert [entry["step"] for entry in history] == expected


def test_the_kept_model_is_the_one_that_is_tested(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best step is an early one here: its weights come back before the test split is measured."""
    seen: list[torch.Tensor] = []
    values = iter([0.9, 0.5, 0.4, 0.0])
    original = training.Evaluator.predict

    def predict_and_remember(self: Any, model: Any, data: Any, *rest: Any) -> Any:
        seen.append(model.classifier.weight.detach().clone())
        return original(self, model, data, *rest)

    monkeypatch.setattr(training.Evaluator, "predict", predict_and_remember)
    monkeypatch.setattr(training, "score", lambda *given: {"accuracy": next(values), "loss": 1.0})
    outcome = run(
        job_file(
            data={"validation": "train.csv", "test": "train.csv"},
            job={"optimizer_steps": 3},
            output={"evaluate_every": 1},
        )
    )
    assert outcome.best_step == 1
    assert torch.equal(seen[3], seen[0])
    assert not torch.equal(seen[2], seen[0])


# What goes wrong


def former_model(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def trained(job_file: JobFile, tmp_path: Path) -> dict[str, bytes]:
    """A model of an earlier run in the output folder."""
    run(job_file(job={"optimizer_steps": 2}))
    return former_model(tmp_path / "model")


def nan_after(steps: int) -> Callable[[Any, Any], Any]:
    calls = iter(range(10_000))

    def loss(model: Any, batch: Any) -> Any:
        value = preparing_loss(model, batch)
        return value * math.nan if next(calls) >= steps else value

    return loss


preparing_loss = preparing.classification_loss
FIXED = {"micro_batching": "fixed", "micro_batch": 8}
"""A plan that needs no trial before step 0."""


def test_a_nan_loss_names_rows_and_keeps_the_former_model(
    job_file: JobFile, trained: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "classification_loss", nan_after(0))
    listener = Listener()
    with pytest.raises(LossNotFiniteError, match=r"train.csv, row \d+ \(line \d+\).*job.learning_rate"):
        run(job_file(plan=FIXED), "output.overwrite=true", watcher=listener)
    assert former_model(tmp_path / "model") == trained
    assert "The former model in" in listener.warnings[0]
    recording = Recording(tmp_path / "model.recording")
    assert recording.ending is not None
    assert recording.ending.outcome == "failed"


def test_a_nan_loss_keeps_the_model_saved_before_it(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_file(job={"optimizer_steps": 6}, output={"evaluate_every": 1}, plan=FIXED)
    monkeypatch.setattr(preparing, "classification_loss", nan_after(3))
    listener = Listener()
    with pytest.raises(LossNotFiniteError):
        run(path, watcher=listener)
    saved = listener.saves[-1][1]
    assert 1 <= saved <= 3
    assert json.loads((tmp_path / "model" / "metrics.json").read_text())["step"] == saved
    assert torch.isfinite(predict(tmp_path / "model", "apple")).all()
    assert f"The model of step {saved} in" in listener.warnings[0]
    assert Recording(tmp_path / "model" / "recording").ending is not None


def test_a_nan_loss_that_shows_while_planning_names_rows_too(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "classification_loss", nan_after(0))
    listener = Listener()
    with pytest.raises(LossNotFiniteError, match=r"train.csv, row \d+ \(line \d+\).*job.learning_rate"):
        run(job_file(), watcher=listener)
    assert listener.begun == 0
    assert not (tmp_path / "model").exists()


def out_of_memory_after(calls: int, most: int) -> Callable[[Any, Any], Any]:
    """A device that from then on holds no more than `most` samples at once."""
    counted = iter(range(10_000))

    def loss(model: Any, batch: Any) -> Any:
        if next(counted) >= calls and len(batch["labels"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return preparing_loss(model, batch)

    return loss


def test_what_does_not_fit_is_trained_in_smaller_parts(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    path = job_file(plan=FIXED)
    whole = run(path)
    monkeypatch.setattr(preparing, "classification_loss", out_of_memory_after(2, most=3))
    parts = run(path, f"output.folder={path.parent / 'parts'}")
    assert parts.totals.losses == pytest.approx(whole.totals.losses, abs=1e-5)
    assert parts.totals.micro_batches > whole.totals.micro_batches
    assert any(reason.choice == "micro_batches=smaller" for reason in parts.reasons)


def test_a_sample_that_does_not_fit_keeps_the_model_saved_before_it(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_file(job={"optimizer_steps": 6}, output={"evaluate_every": 1}, plan=FIXED)
    monkeypatch.setattr(preparing, "classification_loss", out_of_memory_after(3, most=0))
    listener = Listener()
    with pytest.raises(OutOfMemoryError, match="alone. Shorten samples"):
        run(path, watcher=listener)
    assert listener.saves[-1] == ("model", 3)
    assert predict(tmp_path / "model", "apple").shape == (3,)


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_the_end_is_an_error_and_keeps_the_former_model(
    job_file: JobFile, trained: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "save_model", full_disk)
    with pytest.raises(SaveError, match="the disk is full. The model saved before .* is whole"):
        run(job_file(), "output.overwrite=true")
    assert former_model(tmp_path / "model") == trained


def test_a_full_disk_on_the_way_is_a_warning_and_training_goes_on(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([full_disk, full_disk, saving.save_model, saving.save_model])
    monkeypatch.setattr(training, "save_model", lambda *given: next(calls)(*given))
    listener = Listener()
    run(job_file(output={"evaluate_every": 1}), watcher=listener)
    assert len(listener.warnings) == 2
    assert "the disk is full" in listener.warnings[0]
    assert "Training goes on" in listener.warnings[0]
    assert listener.saves == [("model", 3), ("model", 4)]
    assert predict(tmp_path / "model", "apple").shape == (3,)


def test_too_little_room_is_said_before_training(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000}))
    listener = Listener()
    with pytest.raises(SaveError, match="0 MB are free, the model takes"):
        run(job_file(), watcher=listener)
    assert listener.begun == 0


def test_an_existing_folder_is_refused_before_anything_is_read(
    job_file: JobFile, trained: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "train.csv").unlink()
    with pytest.raises(SettingError, match="--force"):
        run(tmp_path / "config.toml")
    assert former_model(tmp_path / "model") == trained


def test_bad_data_leaves_nothing_behind(job_file: JobFile, tmp_path: Path) -> None:
    path = job_file()
    (tmp_path / "train.csv").write_text("text,label\na,x\n,y\n")
    with pytest.raises(DataError, match=r"row 2 \(line 3\)"):
        run(path)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["config.toml", "train.csv"]


class Interrupting(Listener):
    """Asks to stop in the middle of training."""

    def __init__(self, number: signal.Signals, after: int = 2) -> None:
        super().__init__()
        self.number, self.after = number, after

    def steps(self, steps: int, totals: Any) -> None:
        if totals.steps >= self.after:
            self.after = 1_000_000
            signal.raise_signal(self.number)


@pytest.fixture
def _reads_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "READ_EVERY_S", 0.0)


@pytest.mark.usefixtures("_reads_every_step")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_saves_what_it_has(job_file: JobFile, tmp_path: Path, number: signal.Signals) -> None:
    outcome = run(job_file(job={"optimizer_steps": 50}), watcher=Interrupting(number))
    assert (outcome.interrupted, outcome.totals.steps) == (number, 2)
    assert (outcome.saved_to, outcome.best_step) == (tmp_path / "model", 2)
    assert predict(tmp_path / "model", "apple").shape == (3,)
    ending = Recording(tmp_path / "model" / "recording").ending
    assert ending is not None
    assert ending.outcome == "interrupted"


@pytest.mark.usefixtures("_reads_every_step")
def test_an_interrupted_training_does_not_replace_a_former_model(
    job_file: JobFile, trained: dict[str, bytes], tmp_path: Path
) -> None:
    outcome = run(job_file(job={"optimizer_steps": 50}), "output.overwrite=true", watcher=Interrupting(signal.SIGINT))
    assert outcome.saved_to == tmp_path / "model" / "interrupted"
    assert former_model(tmp_path / "model") == trained
    assert predict(outcome.saved_to, "apple").shape == (3,)


@pytest.mark.usefixtures("_reads_every_step")
def test_a_second_interrupt_stops_at_once(job_file: JobFile, trained: dict[str, bytes], tmp_path: Path) -> None:
    class Impatient(Interrupting):
        def steps(self, steps: int, totals: Any) -> None:
            signal.raise_signal(self.number)
            signal.raise_signal(self.number)

    with pytest.raises(KeyboardInterrupt):
        run(job_file(), "output.overwrite=true", watcher=Impatient(signal.SIGINT))
    assert former_model(tmp_path / "model") == trained
    assert not list(tmp_path.glob(".model*"))
