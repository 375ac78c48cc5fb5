"""The drop-in stopped anywhere goes on bit for bit, and never leaves or takes a checkpoint that is not whole."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from trainer_tools import collate, losses, make_model, make_rows
from transformers import TrainerCallback, TrainingArguments

from nearpeak.errors import ResumeError, StorageError
from nearpeak.integrations import _check, _publish
from nearpeak.integrations._check import Check
from nearpeak.integrations._publish import rotate
from nearpeak.integrations._verify import verify
from nearpeak.integrations.huggingface import Trainer
from nearpeak.train.kernels import Kernels
from nearpeak.train.manifest import read_manifest

ROWS = make_rows(26)
STEPS_PER_EPOCH = 5
"""26 rows in batches of 3, two a step: the last window of an epoch is a short one."""


def choose_without_a_clock(patch: Callable[[Any, str, Any], None]) -> None:
    """Two trainings from the start may measure, and so choose, other micro-batches: here they are to be compared."""

    def time_by_name(self: Check, trials: list[Any]) -> None:
        for trial in trials:
            trial.window_ms = {"packed": 1.0, "partition": 2.0}[trial.name]

    patch(Check, "_time", time_by_name)
    patch(_check, "fastest_kernels", lambda model, device: (Kernels(), []))


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_without_a_clock(monkeypatch.setattr)


class StopError(Exception):
    """Stands for a kill: nothing of the training runs after it."""


class StopAfter(TrainerCallback):
    """Ends the training once a step is made, and saved where it is to be."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise StopError


class Drawing(torch.utils.data.Dataset[Any]):
    """Random numbers of every kind in each sample, and a counter that no restart must bring back."""

    def __init__(self, kinds: str) -> None:
        self.kinds, self.own = kinds, numpy.random.default_rng(5)

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = dict(ROWS[index])
        draws = {
            "torch": lambda: int(torch.randint(90, ())),
            "numpy": lambda: int(numpy.random.randint(90)),
            "random": lambda: random.randrange(90),
            "own": lambda: int(self.own.integers(90)),
        }
        shift = sum(draws[kind]() for kind in self.kinds.split())
        row["input_ids"] = 5 + (row["input_ids"] + shift) % 90
        return row


def masking(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A collator that draws from all three generators."""
    batch = collate(rows)
    draw = torch.rand(batch["input_ids"].shape) + float(numpy.random.rand()) + random.random()
    batch["input_ids"] = torch.where((draw > 2) & (batch["attention_mask"] == 1), 4, batch["input_ids"])
    return batch


def make_trainer(
    folder: Path,
    data: Any = None,
    *,
    kind: Any = Trainer,
    collator: Any = collate,
    stop: int | None = None,
    **settings: Any,
) -> Any:
    model = make_model("bert", dtype=torch.float32, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    defaults: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2,
        "max_steps": 12, "learning_rate": 1e-2, "logging_steps": 1, "save_steps": 3, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "seed": 3, "warmup_steps": 2,
    }  # fmt: skip
    callbacks = [StopAfter(stop)] if stop is not None else []
    arguments = TrainingArguments(**{**defaults, **settings})
    trainer = kind(model=model, args=arguments, train_dataset=ROWS if data is None else data, data_collator=collator,
                   callbacks=callbacks)  # fmt: skip
    trainer.pop_callback(transformers.PrinterCallback)
    return trainer


def state_of(trainer: Any) -> dict[str, Any]:
    """Everything that must be equal to the last bit."""
    optimizer = trainer.optimizer.state_dict()["state"]
    tensors = {f"{i}.{name}": value for i, state in optimizer.items() for name, value in state.items()}
    return {
        **{name: value.clone() for name, value in trainer.model.state_dict().items()},
        **{name: value.clone() for name, value in tensors.items()},
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state()[1].tolist(),  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]
        "schedule": trainer.lr_scheduler.state_dict(),
        "losses": losses(trainer),
    }


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name


def stopped_and_resumed(folder: Path, stop: int, *, wanted: Any = True, data: Any = None, **settings: Any) -> Any:
    """A training that is gone after a step, and the one that goes on in another process' place."""
    fresh = data or (lambda: None)
    with pytest.raises(StopError):
        make_trainer(folder, fresh(), stop=stop, **settings).train()
    scramble()
    trainer = make_trainer(folder, fresh(), **settings)
    trainer.train(resume_from_checkpoint=wanted)
    return trainer


def scramble() -> None:
    """A new process has drawn other numbers than the one that was stopped."""
    torch.manual_seed(99)
    numpy.random.seed(99)
    random.seed(99)


def assert_exact(tmp_path: Path, stop: int, **settings: Any) -> Any:
    data = settings.get("data") or (lambda: None)
    whole = make_trainer(tmp_path / "whole", data(), **{k: v for k, v in settings.items() if k != "data"})
    whole.train()
    expected = state_of(whole)
    resumed = stopped_and_resumed(tmp_path / "stopped", stop, **settings)
    assert_equal(state_of(resumed), expected)
    assert "bit for bit" not in " ".join(map(str, resumed.nearpeak.reasons))
    return resumed


# -- bit for bit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("stop", [7, 10], ids=["mid-epoch", "boundary"])
def test_exact_with_random_numbers_everywhere(tmp_path: Path, workers: int, stop: int) -> None:
    """Stopped after step 7, whose checkpoint is of step 6 inside the second epoch; or at the end of the second."""
    every = 3 if stop == 7 else 5
    resumed = assert_exact(
        tmp_path, stop, data=lambda: Drawing("torch numpy random own"), collator=masking,
        dataloader_num_workers=workers, save_steps=every,
    )  # fmt: skip
    assert resumed.state.global_step == 12
    assert any(str(reason).startswith("micro_batching=p") for reason in resumed.nearpeak.reasons)


@pytest.mark.parametrize("kinds", ["torch", "numpy", "random"])
def test_exact_with_each_generator(tmp_path: Path, kinds: str) -> None:
    assert_exact(tmp_path, 4, data=lambda: Drawing(kinds), max_steps=6)


@pytest.mark.parametrize("stop", [7, 10], ids=["mid-epoch", "boundary"])
def test_exact_with_workers_that_live_on(tmp_path: Path, stop: int) -> None:
    assert_exact(
        tmp_path, stop, data=lambda: Drawing("torch"), save_steps=3 if stop == 7 else 5,
        dataloader_num_workers=2, dataloader_persistent_workers=True,
    )  # fmt: skip


@pytest.mark.parametrize("stop", [7, 10], ids=["mid-epoch", "boundary"])
def test_exact_with_an_order_that_is_drawn(tmp_path: Path, stop: int) -> None:
    """Grouping by length draws each epoch's order from the generator that dropout uses."""
    sampling = {"train_sampling_strategy": "group_by_length", "save_steps": 3 if stop == 7 else 5}
    resumed = assert_exact(tmp_path, stop, **sampling)
    assert not any(str(reason).startswith("data_order") for reason in resumed.nearpeak.reasons)


def test_exact_with_evaluation_after_the_save(tmp_path: Path) -> None:
    """At the end of an epoch it runs after the checkpoint, and draws: a resumed training does not repeat it."""

    class Evaluating(Trainer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(eval_dataset=ROWS[:4], **kwargs)

    assert_exact(tmp_path, 10, kind=Evaluating, eval_strategy="epoch", save_steps=5, logging_steps=4)


def test_the_choice_of_micro_batches_is_that_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured again, another one could be faster: time is no function of the training."""
    with pytest.raises(StopError):
        make_trainer(tmp_path, stop=4).train()
    file = tmp_path / "checkpoint-3" / "nearpeak-rank-0.json"
    chosen = json.loads(file.read_bytes())["windows"]["method"]
    monkeypatch.setattr("nearpeak.integrations._check.Check._time", lambda self, trials: pytest.fail("measured again"))
    trainer = make_trainer(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.nearpeak.regrouped == 9
    reason = next(reason for reason in trainer.nearpeak.reasons if reason.choice.startswith("micro_batching"))
    assert reason.choice == f"micro_batching={chosen['name']}"
    assert "as when the checkpoint was saved" in reason.because


def test_a_choice_that_no_longer_holds_is_made_anew(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        make_trainer(tmp_path, stop=4).train()
    edit_rank(tmp_path / "checkpoint-3", kind="items")
    trainer = make_trainer(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    choices = [reason.choice for reason in trainer.nearpeak.reasons if reason.choice.startswith("micro_batching")]
    assert choices[0] == "micro_batching=anew"
    assert choices[1] in ("micro_batching=packed", "micro_batching=partition")


def edit_rank(checkpoint: Path, **changes: Any) -> None:
    """Change the saved choice, and take away the manifest's word for it."""
    file = checkpoint / "nearpeak-rank-0.json"
    state = json.loads(file.read_bytes())
    state["windows"]["method"] |= changes
    file.write_text(json.dumps(state))
    reseal(checkpoint)


def reseal(checkpoint: Path) -> None:
    from nearpeak.train.durable import record_files
    from nearpeak.train.manifest import Position, write_manifest

    old = read_manifest(checkpoint)
    (checkpoint / "manifest.json").unlink()
    position = Position(
        step=old.step, cursor=old.cursor, global_batch=old.global_batch, ranks=old.ranks, extra=old.extra
    )
    write_manifest(checkpoint, position, record_files(checkpoint), old.versions, old.serial)


def test_data_that_only_iterates_is_named(tmp_path: Path) -> None:
    class Rows(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS)

    resumed = stopped_and_resumed(tmp_path, 4, data=Rows, max_steps=6)
    assert any("only iterates" in reason.because for reason in resumed.nearpeak.reasons)


def test_other_versions_and_threads_are_not_claimed_to_be_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StopError):
        make_trainer(tmp_path, stop=4).train()
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    trainer = make_trainer(tmp_path, max_steps=4)
    trainer.train(resume_from_checkpoint=True)
    reason = next(reason for reason in trainer.nearpeak.reasons if reason.choice.startswith("resume="))
    assert "bit for bit" in reason.because
    assert "became 3.0.0" in reason.because
    assert "threads 1 became 64" in reason.because


# -- geometry ----------------------------------------------------------------------------------------------------------


def test_another_global_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        make_trainer(tmp_path, stop=4).train()
    with pytest.raises(ResumeError, match=r"took 6 samples.*take 9 .*Go on with 3 per device × 2") as raised:
        make_trainer(tmp_path, gradient_accumulation_steps=3).train(resume_from_checkpoint=True)
    assert "from_pretrained" in str(raised.value)


def test_another_split_goes_on_with_the_same_windows(tmp_path: Path) -> None:
    seen: dict[str, list[list[int]]] = {}

    def recording(name: str) -> Any:
        class Recording(Trainer):
            def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
                batches, items = super().get_batch_samples(*args, **kwargs)
                rows = [int(row.sum()) for batch in batches for row in batch["input_ids"]]
                seen.setdefault(name, []).append(sorted(rows))
                return batches, items

        return Recording

    make_trainer(tmp_path / "whole", kind=recording("whole")).train()
    with pytest.raises(StopError):
        make_trainer(tmp_path / "b", stop=7).train()
    other = make_trainer(
        tmp_path / "b", kind=recording("b"), per_device_train_batch_size=2, gradient_accumulation_steps=3
    )
    other.train(resume_from_checkpoint=True)
    assert seen["b"] == seen["whole"][6:]
    reason = next(reason for reason in other.nearpeak.reasons if reason.choice.startswith("resume="))
    assert "3 per device × 2 accumulated × 1 ranks became 2 per device × 3" in reason.because


def test_another_split_that_drops_other_samples_is_refused(tmp_path: Path) -> None:
    settings = {"dataloader_drop_last": True, "max_steps": 6}
    with pytest.raises(StopError):
        make_trainer(tmp_path, stop=4, **settings).train()
    other = make_trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=3, **settings)
    with pytest.raises(ResumeError, match="an epoch had 24 samples and would have 26"):
        other.train(resume_from_checkpoint=True)


# -- what is broken ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 3 and 6."""
    folder = tmp_path_factory.mktemp("saved")
    make_trainer(folder, max_steps=6).train()
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, written by transformers itself."""
    folder = tmp_path_factory.mktemp("plain")
    make_trainer(folder, max_steps=6, kind=transformers.Trainer).train()
    return folder


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "truncated weights": (lambda c: cut(c / "model.safetensors"), "model.safetensors"),
    "truncated optimizer": (lambda c: cut(c / "optimizer.pt"), "optimizer.pt"),
    "flipped byte": (lambda c: flip(c / "optimizer.pt"), "optimizer.pt"),
    "half a folder": (lambda c: (c / "trainer_state.json").unlink(), "trainer_state.json"),
    "empty file": (lambda c: os.truncate(c / "scheduler.pt", 0), "scheduler.pt"),
}


@pytest.mark.parametrize("origin", ["saved", "plain"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_checkpoint_is_passed_over_by_name(
    damage: str, origin: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(request.getfixturevalue(origin), tmp_path / "out")
    spoil, named = DAMAGES[damage]
    spoil(folder / "checkpoint-6")
    os.utime(folder / "checkpoint-3", (0, 0))  # the clock was set back, or forward: names count
    trainer = make_trainer(folder, max_steps=4)
    with caplog.at_level(logging.WARNING, "nearpeak"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4
    reason = next(reason for reason in trainer.nearpeak.reasons if reason.choice.startswith("resume="))
    assert reason.choice.endswith("checkpoint-3")
    assert "checkpoint-6 was passed over" in caplog.text
    assert named in caplog.text
    with pytest.raises(StorageError, match=named):
        make_trainer(folder, max_steps=4).train(resume_from_checkpoint=str(folder / "checkpoint-6"))


def test_none_that_is_whole(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory.*no folder checkpoint-N"):
        make_trainer(tmp_path / "new").train(resume_from_checkpoint=True)
    folder = shutil.copytree(saved, tmp_path / "out")
    for checkpoint in folder.iterdir():
        cut(checkpoint / "model.safetensors")
    with pytest.raises(ResumeError, match="checkpoint-6: model.safetensors.*checkpoint-3: model.safetensors"):
        make_trainer(folder).train(resume_from_checkpoint=True)
    with pytest.raises(StorageError, match="no such folder"):
        make_trainer(folder).train(resume_from_checkpoint=str(folder / "checkpoint-9"))


def test_a_plain_checkpoint_is_taken_and_what_it_lacks_named(plain: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(plain, tmp_path / "out")
    (folder / "checkpoint-6" / "rng_state.pth").unlink()
    (folder / "checkpoint-6" / "optimizer.pt").unlink()
    trainer = make_trainer(folder, max_steps=7)
    trainer.train(resume_from_checkpoint=True)
    reason = next(reason for reason in trainer.nearpeak.reasons if reason.choice.startswith("resume="))
    for lacking in ("the optimizer", "the random state", "not saved by nearpeak"):
        assert lacking in reason.because
    assert "schedule" not in reason.because


def test_plain_transformers_resumes_ours(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "out")
    trainer = make_trainer(folder, max_steps=7, kind=transformers.Trainer)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 7


# -- saving ------------------------------------------------------------------------------------------------------------


def test_a_kill_during_a_save_leaves_the_last_one(tmp_path: Path) -> None:
    """SIGKILL in a process of its own, while the second checkpoint is half written; then its leftovers are cleared."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = [sys.executable, str(Path(__file__).with_name("killed_save.py")), str(tmp_path / "out")]
    ended = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert "checkpoint-3" in left
    assert "checkpoint-6" not in left
    assert any(name.startswith(".tmp-") for name in left)
    whole = make_trainer(tmp_path / "whole")
    whole.train()
    expected = state_of(whole)
    resumed = make_trainer(tmp_path / "out")
    resumed.train(resume_from_checkpoint=True)
    assert_equal(state_of(resumed), expected)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "manifest.json"])
def test_any_error_while_saving_leaves_the_last_one(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the second save, whoever writes."""

    def full(*args: Any, **kwargs: Any) -> Any:
        if any((tmp_path / "out" / f"checkpoint-{step}").exists() for step in (3,)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return own(*args, **kwargs)

    where = {
        "model.safetensors": (Trainer, "_save"),
        "optimizer.pt": (Trainer, "_save_optimizer_and_scheduler"),
        "manifest.json": (_publish, "write_manifest"),
    }[file]
    own = getattr(*where)
    monkeypatch.setattr(*where, full)
    with pytest.raises(StorageError, match="the disk is full"):
        make_trainer(tmp_path / "out").train()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-3"]
    assert verify(tmp_path / "out" / "checkpoint-3").why is None


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("room", [1, 40], ids=["asked for", "met while writing"])
def test_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        make_trainer(disk, max_steps=3).train()
        used = sum(path.stat().st_size for path in (disk / "checkpoint-3").iterdir())
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "other").write_bytes(bytes(free - used // 2))
        if room == 40:
            monkeypatch.setattr("nearpeak.train.storage.ask_for_space", lambda *args: None)
        with pytest.raises(StorageError, match="are free|the disk is full"):
            make_trainer(disk).train(resume_from_checkpoint=True)
        assert sorted(path.name for path in disk.iterdir()) == ["checkpoint-3", "other"]
        assert verify(disk / "checkpoint-3").why is None
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root permissions are no obstacle, so the refusal is made."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("nearpeak.train.storage.WritingLock", refuse)
    with pytest.raises(StorageError, match="read-only"):
        make_trainer(tmp_path / "out").train()
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_an_error_of_the_scripts_own_stays_what_it_is(tmp_path: Path) -> None:
    class Failing(Trainer):
        def _save(self, *args: Any, **kwargs: Any) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        make_trainer(tmp_path / "out", kind=Failing).train()
    assert not list((tmp_path / "out").iterdir())


def test_a_checkpoint_says_where_it_stands(saved: Path) -> None:
    manifest = read_manifest(saved / "checkpoint-6")
    assert (manifest.step, manifest.cursor, manifest.global_batch, manifest.ranks) == (6, 26 + 6, 6, 1)
    assert manifest.extra["geometry"]["per_device"] == 3
    assert {"torch", "transformers", "accelerate", "numpy", "python"} <= manifest.versions.keys()
    assert {"model.safetensors", "optimizer.pt", "nearpeak-rank-0.json"} <= manifest.files.keys()


def test_the_best_one_is_known_by_its_own_name(tmp_path: Path) -> None:
    class Evaluating(Trainer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(eval_dataset=ROWS[:4], **kwargs)

    trainer = make_trainer(
        tmp_path, kind=Evaluating, eval_strategy="steps", eval_steps=3, max_steps=6, load_best_model_at_end=True,
        metric_for_best_model="loss", greater_is_better=True, save_total_limit=1,
    )  # fmt: skip
    events: list[list[str]] = []

    class Saved(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            events.append(sorted(path.name for path in tmp_path.iterdir()))

    trainer.add_callback(Saved())
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    assert best.parent == tmp_path
    assert best.is_dir()
    state = json.loads((best / "trainer_state.json").read_bytes())
    assert state["best_model_checkpoint"] == str(best)
    assert verify(best).why is None
    assert events[0] == ["checkpoint-3"]


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=3).train()
    (tmp_path / "checkpoint-3" / "old").touch()
    make_trainer(tmp_path, max_steps=3).train()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    assert not (tmp_path / "checkpoint-3" / "old").exists()
    assert verify(tmp_path / "checkpoint-3").why is None


def test_pushing_waits_for_the_published_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        transformers.Trainer, "_push_from_checkpoint",
        lambda self, folder: pushed.append((folder, (Path(folder) / "manifest.json").exists())),
    )  # fmt: skip

    class Pushing(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            self.args.push_to_hub = True
            super()._save_checkpoint(model, trial)
            self.args.push_to_hub = False

    make_trainer(tmp_path, kind=Pushing, max_steps=3).train()
    assert pushed == [(str(tmp_path / "checkpoint-3"), True)]


def test_a_trial_saves_into_its_own_folder(tmp_path: Path) -> None:
    class InTrial(Trainer):
        def _get_output_dir(self, trial: Any) -> str:
            return str(tmp_path / "run-7")

    make_trainer(tmp_path / "out", kind=InTrial, max_steps=3).train()
    assert [path.name for path in (tmp_path / "run-7").iterdir()] == ["checkpoint-3"]
    assert verify(tmp_path / "run-7" / "checkpoint-3").why is None


# -- retention ---------------------------------------------------------------------------------------------------------


def test_the_limit_counts_steps_and_not_clocks(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=6, save_total_limit=2).train()
    os.utime(tmp_path / "checkpoint-6", (0, 0))
    trainer = make_trainer(tmp_path, max_steps=9, save_total_limit=2)
    trainer.train(resume_from_checkpoint=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-6", "checkpoint-9"]


def test_broken_ones_go_first_and_protected_ones_never(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for step in (3, 9, 12):
        shutil.copytree(saved / "checkpoint-3", folder / f"checkpoint-{step}")
    cut(folder / "checkpoint-9" / "optimizer.pt")
    assert [path.name for path in rotate(folder, 2, [folder / "checkpoint-12"])] == ["checkpoint-9"]
    assert rotate(folder, None, []) == []
    assert [path.name for path in rotate(folder, 1, [folder / "checkpoint-12"])] == ["checkpoint-3"]
    assert [path.name for path in folder.iterdir()] == ["checkpoint-12"]
    assert rotate(folder, 1, [folder / "checkpoint-12"]) == []
