"""SIGKILL at random moments, saves included: does every run go on, and to the very same weights?

    python benchmarks/kill.py --kills 200
    python benchmarks/kill.py --quick

A training that saves after every step is killed again and again, at moments drawn uniformly, and started again from
what is on the disk, until it ends; then the next one begins, until so many kills have been made. Half of the trainings
fetch their samples with two workers, and every sample draws random numbers.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from _table import Target, finish, options, print_table

from nearpeak import Job, Plan, Run
from nearpeak.plan import LoaderSettings
from nearpeak.train.state import Checkpoints
from nearpeak.train.storage import CheckpointFolder

STEPS = 40


class Noisy(torch.utils.data.Dataset):
    """Vectors with noise from every global generator."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.values, self.kinds = torch.randn(64, 64, generator=generator), torch.arange(64) % 4

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(64) + torch.from_numpy(np.random.rand(64)).float() + random.random()
        return self.values[index] + noise, self.kinds[index]


def job() -> Job:
    torch.manual_seed(0)
    # Large enough (3 MB of state) that a good part of the time is spent saving.
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(256, 768),
        torch.nn.Linear(768, 4),
    )
    return Job(
        model=model,
        data=Noisy(),
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        global_batch=16,
        optimizer_steps=STEPS,
        clip_norm=1.0,
    )


def train(folder: Path | None, workers: int) -> dict[str, torch.Tensor]:
    """The whole training, from wherever the folder says it stands."""
    plan = Plan(
        micro_batching="fixed", micro_batch=8, checkpoint_every=1, loader=LoaderSettings(workers=workers), threads=1
    )
    kept = None if folder is None else Checkpoints(folder=folder, notices=None)
    run = Run(job(), plan, device="cpu", checkpoints=kept)
    for _ in run:
        pass
    return run.model.state_dict()


def attempt(folder: Path, workers: int) -> None:
    """One life of the training process; what it ends with is in `final.pt`."""
    sys.stderr = open(folder / "stderr.txt", "a")  # noqa: SIM115  for the life of the process
    weights = train(folder / "state", workers)
    torch.save(weights, folder / "final.tmp")
    os.rename(folder / "final.tmp", folder / "final.pt")


@dataclass
class Tally:
    """What happened."""

    kills: int = 0
    trainings: int = 0
    crashes: int = 0
    corrupt: int = 0
    different: int = 0
    while_saving: int = 0
    errors: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def one_training(reference: dict[str, torch.Tensor], workers: int, longest_s: float, most: int, tally: Tally) -> None:
    """Kill and start again until the training ends; then compare."""
    folder = Path(tempfile.mkdtemp(prefix="nearpeak-kill-"))
    try:
        while tally.kills < most and _survives(folder, workers, longest_s, tally) is False:
            _check_folder(folder / "state", tally)
        if not (folder / "final.pt").exists() and _survives(folder, workers, None, tally) is None:
            return
        final = torch.load(folder / "final.pt")
        tally.trainings += 1
        tally.different += any(not torch.equal(value, final[name]) for name, value in reference.items())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _survives(folder: Path, workers: int, longest_s: float | None, tally: Tally) -> bool | None:
    """One life: True if it ended by itself, False if it was killed, None if it crashed."""
    process = multiprocessing.get_context("fork").Process(target=attempt, args=(folder, workers))
    process.start()
    process.join(None if longest_s is None else random.uniform(0.02, longest_s))
    if process.is_alive():
        tally.while_saving += any((folder / "state").glob(".tmp-*")) if (folder / "state").exists() else 0
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        tally.kills += 1
        return False
    if process.exitcode:
        tally.crashes += 1
        tally.errors.append((folder / "stderr.txt").read_text()[-2000:])
        return None
    return True


def _check_folder(state: Path, tally: Tally) -> None:
    """After a kill, every checkpoint that stands under its name must be whole."""
    if state.exists():
        broken = [each for each in CheckpointFolder(state).checkpoints(verify=True) if each.status != "verified"]
        tally.corrupt += len(broken)
        tally.errors += [f"{each.path}: {each.why}" for each in broken]


def main() -> None:
    parser: argparse.ArgumentParser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    kills = 10 if given.quick else given.kills
    random.seed(given.seed)
    torch.set_num_threads(1)
    reference = train(None, 0)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), 0)
    whole_s = time.perf_counter() - start
    tally = Tally()
    while tally.kills < kills and tally.crashes < 5:
        # Up to two thirds of a whole training: some lives make many steps, others die while they load.
        one_training(reference, (tally.trainings % 2) * 2, 0.67 * whole_s, kills, tally)
    rows = [
        [name, str(getattr(tally, name))] for name in Tally.__dataclass_fields__ if name not in ("errors", "skipped")
    ]
    print_table(f"SIGKILL at random moments ({whole_s:.1f} s for a whole training of {STEPS} steps)", ["", ""], rows)
    for error in tally.errors[:3]:
        print(error)
    targets = [
        Target("kills", tally.kills, kills),
        Target("crashes on resume", tally.crashes, 0, at_most=True),
        Target("corrupt or unloadable states", tally.corrupt, 0, at_most=True),
        Target("trainings whose final weights differ in any bit", tally.different, 0, at_most=True),
    ]
    figures = {
        name: getattr(tally, name) for name in ("kills", "trainings", "crashes", "corrupt", "different", "while_saving")
    }
    finish(targets, figures, given.json)


if __name__ == "__main__":
    main()
