"""A training that was stopped goes on with the same command, and ends as if it had not been."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nearpeak.errors import ResumeError, SettingError
from nearpeak.recording import Recording
from nearpeak.tasks.text_classification import training
from nearpeak.tasks.text_classification.config import load_config
from nearpeak.tasks.text_classification.resuming import Resuming
from nearpeak.tasks.text_classification.training import Outcome, Watcher, train

JobFile = Callable[..., Path]
JOB = {"optimizer_steps": 9}
OUTPUT = {"evaluate_every": 2}
DATA = {"validation_fraction": 0.3}


class Stopping(Watcher):
    """Ends the training once so many steps are done, by a signal or by an error."""

    def __init__(self, after: int, by: signal.Signals | Exception) -> None:
        self.after, self.by = after, by

    def steps(self, steps: int, totals: Any) -> None:
        if totals.steps >= self.after:
            self.after = 1_000_000
            if isinstance(self.by, Exception):
                raise self.by
            signal.raise_signal(self.by)


@pytest.fixture(autouse=True)
def _reads_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "READ_EVERY_S", 0.0)


def run(path: Path, *overrides: str, watcher: Watcher | None = None, **resuming: bool) -> Outcome:
    return train(load_config(path, overrides), watcher, device="cpu", resuming=Resuming(**resuming))


def stopped(job_file: JobFile, after: int = 4, by: Any = signal.SIGTERM, **sections: Any) -> Path:
    """A config whose training was stopped."""
    path = job_file(**{"job": JOB, "output": OUTPUT, "data": DATA} | sections)
    try:
        assert run(path, "plan.checkpoint_every=1", watcher=Stopping(after, by)).interrupted == by
    except type(by):
        pass
    return path


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, RuntimeError("planted")])
@pytest.mark.parametrize("after", [1, 4, 5])
def test_goes_on_as_if_nothing_had_happened(job_file: JobFile, tmp_path: Path, after: int, by: Any) -> None:
    whole = run(job_file(job=JOB, output=OUTPUT, data=DATA), f"output.folder={tmp_path / 'whole'}")
    outcome = run(stopped(job_file, after, by), "plan.checkpoint_every=1")
    assert outcome.totals.losses == whole.totals.losses
    assert (outcome.metrics, outcome.best_step) == (whole.metrics, whole.best_step)
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "model"))
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert not (tmp_path / "model.state").exists() and not (tmp_path / "model" / "interrupted").exists()
    assert [step.step for step in Recording(tmp_path / "model" / "recording").steps()] == list(range(9))


def test_a_finished_training_leaves_no_state_and_a_second_one_is_refused(job_file: JobFile, tmp_path: Path) -> None:
    run(job_file())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["config.toml", "model", "train.csv"]
    with pytest.raises(SettingError, match="not empty"):
        run(job_file())


def test_restart_forgets_what_was_reached(job_file: JobFile, tmp_path: Path) -> None:
    path = stopped(job_file, by=RuntimeError("planted"))
    with pytest.raises(SettingError, match="not empty"):  # the model of the stopped training stands there
        run(path, restart=True)
    outcome = run(path, "output.overwrite=true", restart=True)
    assert not any(reason.choice.startswith("resume") for reason in outcome.reasons)
    assert outcome.totals.steps == 9


def test_another_job_is_refused(job_file: JobFile) -> None:
    path = stopped(job_file)
    with pytest.raises(ResumeError, match="seed was 0 and is 1"):
        run(path, "job.seed=1")


def test_a_new_global_batch_needs_to_be_allowed(job_file: JobFile) -> None:
    path = stopped(job_file, job={"optimizer_steps": None, "epochs": 6})
    with pytest.raises(ResumeError, match="--allow-new-global-batch"):
        run(path, "job.global_batch=4")
    outcome = run(path, "job.global_batch=4", allow_new_global_batch=True)
    assert any("none is lost or repeated" in reason.because for reason in outcome.reasons)


def test_no_state_where_none_is_wanted(job_file: JobFile, tmp_path: Path) -> None:
    stopped(job_file, output={**OUTPUT, "resume": False})
    assert not (tmp_path / "model.state").exists()
