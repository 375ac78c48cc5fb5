"""Workers whose training is killed before they have begun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from nearpeak.train.loader import _leave_if_orphaned


def late_worker(folder: str, wait_for_orphanhood: bool) -> None:
    """A worker that comes to its senses only after its training has gone."""
    parent = os.getppid()
    Path(folder, "began").touch()
    while wait_for_orphanhood and os.getppid() == parent:
        time.sleep(0.005)
    time.sleep(0.1 if wait_for_orphanhood else 0)  # a sentinel may be a little later than the process
    _leave_if_orphaned(0)
    Path(folder, "stayed").touch()


def training(method: str, folder: str, is_killed: bool) -> None:
    worker = multiprocessing.get_context(method).Process(target=late_worker, args=(folder, is_killed))
    worker.start()
    Path(folder, "worker").write_text(str(worker.pid))
    worker.join()


def run_training(method: str, folder: Path, *, is_killed: bool) -> int:
    """The worker's process number, after the training has ended."""
    process = multiprocessing.get_context("spawn").Process(target=training, args=(method, str(folder), is_killed))
    process.start()
    wait_for(lambda: (folder / "began").exists() and (folder / "worker").exists())
    if is_killed:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return int((folder / "worker").read_text())


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_begins_after_its_training_was_killed_leaves(method: str, tmp_path: Path) -> None:
    worker = run_training(method, tmp_path, is_killed=True)
    wait_for(lambda: not is_running(worker))
    assert not (tmp_path / "stayed").exists()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_whose_training_lives_stays(method: str, tmp_path: Path) -> None:
    run_training(method, tmp_path, is_killed=False)
    assert (tmp_path / "stayed").exists()


def test_without_workers_there_is_nobody_to_leave() -> None:
    _leave_if_orphaned(0)
