"""What is saved beside a training is what the training was when the save began, or it is not saved and says so."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nearpeak.errors import SettingError, StorageError
from nearpeak.train import saver as saver_module
from nearpeak.train.saver import Saver, load_state
from nearpeak.train.snapshot import restore_rng, rng_state
from nearpeak.train.storage import CheckpointFolder, Position

DEADLINE_S = 10


def position(step: int) -> Position:
    return Position(step=step, cursor=8 * step, global_batch=8)


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "out")


@pytest.fixture
def saver(folder: CheckpointFolder) -> Iterator[Saver]:
    with Saver(folder) as opened:
        yield opened


def steps_of(folder: CheckpointFolder) -> list[int]:
    return [each.step for each in folder.checkpoints(verify=True) if each.status == "verified"]


class Held:
    """Stops the saving thread at a function until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, of_thread_only: bool = True) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        original = getattr(saver_module, name)

        def held(*args: Any, **kwargs: Any) -> Any:
            if not of_thread_only or threading.current_thread() is not threading.main_thread():
                self.reached.set()
                assert self.go.wait(DEADLINE_S)
            return original(*args, **kwargs)

        monkeypatch.setattr(saver_module, name, held)


# -- states come back --------------------------------------------------------------------------------------------------


def train(folder: Path, steps: int, *, kill_after: int | None = None) -> list[torch.Tensor]:
    """A training that saves every step and resumes from what is there; its order of events is that of a real loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)
    first, out = 0, CheckpointFolder(folder)
    newest = out.newest().checkpoint
    if newest is not None:
        first, state = newest.step, load_state(newest)
        model.load_state_dict(state["parameters"] | state["buffers"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        restore_rng(state["random"])
    data = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    with Saver(out, keep=2) as saving:
        for step in range(first, steps):
            if step == kill_after:
                break
            model(data[step : step + 8]).square().mean().backward()
            saving.wait_staged()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            saving.begin(
                position(step + 1),
                {"parameters": dict(model.named_parameters()), "optimizer": optimizer.state_dict()},
                {"buffers": dict(model.named_buffers()), "schedule": schedule.state_dict(), "random": rng_state()},
            )
            assert not saving.again
    return [*model.state_dict().values()]


def test_a_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole", 12)
    train(tmp_path / "parts", 12, kill_after=5)
    torch.rand(7)
    train(tmp_path / "parts", 12, kill_after=9)
    found = train(tmp_path / "parts", 12)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert steps_of(CheckpointFolder(tmp_path / "parts")) == [12, 11]


def test_both_parts_of_a_state_come_back_together(saver: Saver, folder: CheckpointFolder) -> None:
    weight = torch.randn(1000)
    checkpoint = saver.save(position(3), {"w": weight, "lr": 0.1}, {"b": torch.tensor(2), "n": {1: "a"}})
    assert checkpoint is not None
    state = load_state(checkpoint)
    assert torch.equal(state.pop("w"), weight)
    assert state == {"lr": 0.1, "b": torch.tensor(2), "n": {1: "a"}}
    assert checkpoint.manifest is not None
    assert checkpoint.manifest.versions["torch"] == torch.__version__
    assert saver.saved == checkpoint
    assert saver.memory_bytes >= weight.nbytes


def test_a_name_in_both_parts_is_refused(saver: Saver) -> None:
    with pytest.raises(SettingError, match="w: given both as steady and as changing"):
        saver.begin(position(1), {"w": 1}, {"w": 2})


def test_what_cannot_be_saved_is_refused_at_once(saver: Saver, folder: CheckpointFolder) -> None:
    with pytest.raises(StorageError, match="state at extra: a builtins.object cannot be saved exactly"):
        saver.begin(position(1), {"extra": object()})
    assert saver.wait_durable() is None


def test_no_state_of_that_rank(saver: Saver) -> None:
    checkpoint = saver.save(position(1), {"w": torch.ones(1)})
    assert checkpoint is not None
    with pytest.raises(StorageError, match="no state of rank 2: it was saved by 1 ranks"):
        load_state(checkpoint, rank=2)


# -- what is captured when ---------------------------------------------------------------------------------------------


def test_the_training_goes_on_while_it_is_written(
    saver: Saver, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Held(monkeypatch, "write")
    weight = torch.zeros(1000)
    saver.begin(position(1), {"w": weight})
    saver.wait_staged()
    weight.add_(1)  # the update
    assert writing.reached.wait(DEADLINE_S)
    assert saver.busy
    assert steps_of(folder) == []
    writing.go.set()
    checkpoint = saver.wait_durable()
    assert checkpoint is not None
    assert float(load_state(checkpoint)["w"].sum()) == 0.0
    assert saver.last.durable_ms >= saver.last.write_ms > 0
    assert saver.last.bytes > 4000


def test_changing_state_is_captured_at_once(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Held(monkeypatch, "stage")
    statistics, counts = torch.zeros(3), {"seen": 1}
    saver.begin(position(1), {"w": torch.zeros(3), "counts": counts}, {"s": statistics})
    statistics.add_(1)
    counts["seen"] = 2
    staging.go.set()
    checkpoint = saver.wait_durable()
    assert checkpoint is not None
    state = load_state(checkpoint)
    assert float(state["s"].sum()) == 0.0
    assert state["counts"] == {"seen": 1}


def test_a_torn_copy_is_given_up_and_learned_from(
    saver: Saver, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that changes while it is copied: no save, its name, and the next one copies it at once."""
    with monkeypatch.context() as patched:
        staging = Held(patched, "stage")
        weights = {"a": torch.zeros(3), "b": torch.zeros(3)}
        saver.begin(position(1), {"w": weights})
        weights["b"].add_(1)
        staging.go.set()
        saver.wait_staged()
        assert saver.again
        assert saver.wait_durable() is None
    assert steps_of(folder) == []
    assert "w.b changed while being copied" in saver.reasons[-1].because
    staging = Held(monkeypatch, "stage")
    saver.begin(position(2), {"w": weights})
    weights["b"].add_(1)
    staging.go.set()
    checkpoint = saver.wait_durable()
    assert checkpoint is not None
    assert float(load_state(checkpoint)["w"]["b"].sum()) == 3.0
    assert not saver.again


def test_a_change_that_shows_late_is_seen_before_the_commit(
    saver: Saver, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that began while the copy was made counts up only when it is done."""
    writing = Held(monkeypatch, "write")
    weight = torch.zeros(3)
    saver.begin(position(1), {"w": weight})
    assert writing.reached.wait(DEADLINE_S)
    weight.add_(1)
    saver.wait_staged()
    assert saver.again
    writing.go.set()
    assert saver.wait_durable() is None
    assert steps_of(folder) == []
    assert list(folder.root.iterdir()) == []


def test_updates_after_staging_are_no_tear(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Held(monkeypatch, "write")
    weight = torch.zeros(3)
    saver.begin(position(1), {"w": weight})
    for _ in range(3):
        saver.wait_staged()
        weight.add_(1)
    writing.go.set()
    assert saver.wait_durable() is not None


def test_tensors_without_a_count_of_writes(saver: Saver) -> None:
    with torch.inference_mode():
        weight = torch.ones(3)
    checkpoint = saver.save(position(1), {"w": weight})
    assert checkpoint is not None
    assert torch.equal(load_state(checkpoint)["w"], torch.ones(3))
    saver.begin(position(2), {"w": weight})
    assert saver.wait_durable() is not None


def test_waiting_without_a_save_is_free(saver: Saver) -> None:
    assert saver.wait_staged() == 0.0
    assert saver.wait_durable() is None


# -- one at a time -----------------------------------------------------------------------------------------------------


def test_a_second_save_waits_and_says_how_long(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        writing = Held(patched, "write")
        saver.begin(position(1), {"w": torch.zeros(3)})
        threading.Timer(0.2, writing.go.set).start()
        saver.begin(position(2), {"w": torch.zeros(3)})
    assert saver.last.waited_for_previous_ms >= 150
    (reason,) = saver.reasons
    assert reason.choice == "checkpoint=waits"
    assert "the save of step 1 was not on the disk yet" in reason.because
    checkpoint = saver.wait_durable()
    assert checkpoint is not None
    assert checkpoint.step == 2


def test_a_second_save_may_be_skipped(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with Saver(folder, policy="skip") as saver:
        writing = Held(monkeypatch, "write")
        assert saver.begin(position(1), {"w": torch.zeros(3)}) is None
        assert writing.reached.wait(DEADLINE_S)
        reason = saver.begin(position(2), {"w": torch.zeros(3)})
        assert reason is not None
        assert reason.because == "step 2 is not saved: the save of step 1 is still under way."
        assert saver.reasons == [reason]
        writing.go.set()
    assert steps_of(folder) == [1]


def test_old_ones_go_and_the_last_stays(folder: CheckpointFolder) -> None:
    with Saver(folder, keep=2) as saver:
        for step in range(1, 5):
            saver.save(position(step), {"w": torch.full((3,), step)})
    assert steps_of(folder) == [4, 3]
    with pytest.raises(SettingError, match="keep=0"):
        Saver(folder, keep=0)


def test_a_layout_is_planned_again_when_the_state_changes(folder: CheckpointFolder) -> None:
    weight, other = torch.ones(3), torch.zeros(3)
    states = [{"a": weight}, {"a": weight, "b": other}, {"a": weight, "b": weight}, {"a": weight[:2], "b": weight}]
    states += [{"a": weight.double(), "b": weight}, {"a": weight.double(), "c": weight}]
    with Saver(folder) as saver:
        for step, state in enumerate(states):
            checkpoint = saver.save(position(step), state)
            assert checkpoint is not None
            found = load_state(checkpoint)
            assert list(found) == list(state)
            assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
            assert all(found[name].dtype == tensor.dtype for name, tensor in state.items())


def test_memory_is_taken_beforehand_and_given_back(folder: CheckpointFolder) -> None:
    state = {"w": torch.ones(100_000)}
    saver = Saver(folder)
    saver.reserve(state)
    saver.begin(position(1), state)
    assert saver.memory_bytes >= 400_000
    saver.close()
    assert saver.memory_bytes == 0
    assert steps_of(folder) == [1]
    Saver(folder).close()


# -- saves that fail ---------------------------------------------------------------------------------------------------


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_save_warns_once_and_raises_at_the_next(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(folder)
    saver.save(position(1), {"w": torch.zeros(3)})
    with monkeypatch.context() as patched:
        patched.setattr(saver_module, "write", full)
        saver.begin(position(2), {"w": torch.zeros(3)})
        assert saver._current is not None
        saver._current.thread.join()
        with pytest.warns(RuntimeWarning, match="checkpoint of step 2 was not saved: .*the disk is full"):
            saver.wait_staged()
        saver.wait_staged()
    with pytest.raises(StorageError, match=r"the disk is full \(saving step 2\)"):
        saver.begin(position(3), {"w": torch.zeros(3)})
    assert steps_of(folder) == [1]
    saver.begin(position(4), {"w": torch.zeros(3)})  # said once; the loop may go on and try again
    saver.close()
    assert steps_of(folder) == [4, 1]


def test_failures_may_only_warn(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(folder, on_failure="warn")
    with monkeypatch.context() as patched:
        patched.setattr(saver_module, "write", full)
        saver.begin(position(1), {"w": torch.zeros(3)})
        assert saver._current is not None
        saver._current.thread.join()
    with pytest.warns(RuntimeWarning, match="step 1 was not saved"):
        saver.begin(position(2), {"w": torch.zeros(3)})
    saver.close()
    assert steps_of(folder) == [2]


def test_before_an_exit_a_failure_is_raised(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver_module, "write", full)
    saver = Saver(folder, on_failure="warn")
    with pytest.raises(StorageError, match="the disk is full"):
        saver.save(position(1), {"w": torch.zeros(3)})
    saver.close()


def test_no_room_is_found_out_before_writing(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(folder)
    monkeypatch.setattr("nearpeak.train.durable.free_bytes", lambda folder: 1000)
    with pytest.raises(StorageError, match=r"needs 8\.\d kB, 1.0 kB are free"):
        saver.save(position(1), {"w": torch.zeros(1000)})
    assert list(folder.root.iterdir()) == []


def test_a_bug_in_the_thread_reaches_the_loop(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(saver_module, "write", broken)
    saver = Saver(folder)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        saver.save(position(1), {"w": torch.zeros(3)})


def test_saved_but_old_ones_cannot_be_deleted(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(folder, keep=1)
    saver.save(position(1), {"w": torch.zeros(3)})

    def refused(*_: Any, **__: Any) -> None:
        raise StorageError("no permission")

    monkeypatch.setattr(folder, "prune", refused)
    with pytest.warns(RuntimeWarning, match="step 2 is saved, but no permission"):
        saver.save(position(2), {"w": torch.zeros(3)})
    assert steps_of(folder) == [2, 1]


def test_another_error_on_its_way_is_not_hidden(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver_module, "write", full)
    with pytest.warns(RuntimeWarning, match="not saved"), pytest.raises(KeyError, match="mine"):
        interrupted_by_an_error(folder)


def interrupted_by_an_error(folder: CheckpointFolder) -> None:
    with Saver(folder) as saver:
        saver.begin(position(1), {"w": torch.zeros(3)})
        raise KeyError("mine")


# -- ends of programs --------------------------------------------------------------------------------------------------

PROGRAM = """
    import sys, torch
    from nearpeak.train.saver import Saver
    from nearpeak.train.storage import CheckpointFolder, Position

    saver = Saver(CheckpointFolder(sys.argv[1]), keep=2)
    weight = torch.zeros(2_000_000)
    def begin(step):
        saver.begin(Position(step=step, cursor=step, global_batch=1), {"w": weight})
"""


def program(folder: CheckpointFolder, ending: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(PROGRAM) + textwrap.dedent(ending)
    command = [sys.executable, "-c", code, str(folder.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("ending", ["begin(1)", "begin(1); 1 / 0"])
def test_a_save_under_way_outlives_the_end_of_the_program(folder: CheckpointFolder, ending: str) -> None:
    program(folder, ending).communicate(timeout=60)
    assert steps_of(folder) == [1]


def test_a_failure_at_the_very_end_is_still_told(folder: CheckpointFolder) -> None:
    folder.root.parent.mkdir(exist_ok=True)
    folder.root.write_text("a file")
    _, told = program(folder, "begin(1)").communicate(timeout=60)
    assert "nearpeak: The checkpoint of step 1 was not saved" in told
    assert "where a folder is needed" in told


@pytest.mark.slow
def test_kills_while_saving_beside_a_training(folder: CheckpointFolder) -> None:
    """SIGKILL at any moment of staging and writing: the newest is whole and as new as was announced."""
    loop = """
        import itertools
        newest = saver.folder.newest().checkpoint
        saver.folder.clear_orphans()
        for step in itertools.count(newest.step + 1 if newest else 1):
            saver.wait_staged()
            weight.fill_(step)
            begin(step)
            print(saver.saved.step if saver.saved else 0, flush=True)
    """
    for kill in range(3):
        child = program(folder, loop)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3)]
        time.sleep(0.019 * kill)
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        announced = int(("".join(lines) + rest).split()[-1])
        found = folder.newest()
        assert found.skipped == []
        assert found.checkpoint is not None
        assert found.checkpoint.step >= announced
        assert float(load_state(found.checkpoint)["w"].unique()) == found.checkpoint.step
    folder.clear_orphans()
    assert all(path.name.startswith("step-") for path in folder.root.iterdir())


# -- several ranks -----------------------------------------------------------------------------------------------------


def test_ranks_save_into_one_checkpoint(folder: CheckpointFolder) -> None:
    savers = [Saver(CheckpointFolder(folder.root), rank=rank, ranks=2, peer_timeout_s=5) for rank in (0, 1)]
    draft = savers[0].open_draft(4, 1000)
    for rank, saver in enumerate(savers):
        saver.begin(position(4), {"w": torch.full((3,), rank)}, draft=draft)
    for saver in savers:
        saver.wait_durable()
    newest = folder.newest().checkpoint
    assert newest is not None
    assert [float(load_state(newest, rank)["w"][0]) for rank in (0, 1)] == [0.0, 1.0]
    for saver in savers:
        saver.close()


def test_a_rank_that_cannot_write_tells_the_first(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Saver(CheckpointFolder(folder.root), rank=rank, ranks=2, peer_timeout_s=5) for rank in (0, 1))
    draft = first.open_draft(4, 1000)
    with monkeypatch.context() as patched:
        patched.setattr(saver_module, "write", full)
        second.begin(position(4), {"w": torch.zeros(1)}, draft=draft)
        with pytest.raises(StorageError, match="the disk is full"):
            second.wait_durable()
    first.begin(position(4), {"w": torch.zeros(1)}, draft=draft)
    with pytest.raises(StorageError, match="rank 1 could not save"):
        first.wait_durable()
    assert list(folder.root.iterdir()) == []


def test_a_draft_that_is_not_used_is_removed(folder: CheckpointFolder) -> None:
    saver = Saver(folder, rank=0, ranks=2)
    saver.open_draft(1, 10)
    with pytest.raises(StorageError, match="cannot be saved exactly"):
        saver.begin(position(1), {"x": object()})
    assert list(folder.root.iterdir()) == []
    saver.open_draft(1, 10)
    saver.close()
    assert list(folder.root.iterdir()) == []


def test_threads_that_write_yield(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = saver_module.write

    def noting(*args: Any) -> Any:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return original(*args)

    monkeypatch.setattr(saver_module, "write", noting)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with Saver(folder) as saver:
        saver.begin(position(1), {"w": torch.zeros(3)})
        saver.wait_durable()
        saver.save(position(2), {"w": torch.zeros(3)})
    assert seen == [min(own + saver_module.BACKGROUND_NICENESS, 19), own]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    shutil.rmtree(folder.root)
