"""A run that was stopped anywhere goes on bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import Points, classifier, perceptron, point_job, text_job, texts

from nearpeak import Plan, Run
from nearpeak.errors import NotEquivalentError, ResumeError, StorageError
from nearpeak.plan import LoaderSettings
from nearpeak.testing import assert_exact_resume
from nearpeak.train.order import SampleOrder
from nearpeak.train.preempt import PREEMPTED_EXIT_CODE, Preempted
from nearpeak.train.state import Checkpoints
from nearpeak.train.storage import CheckpointFolder

EVERY = Plan(micro_batching="fixed", micro_batch=3, checkpoint_every=1, loader=LoaderSettings(workers=0))


def quiet(folder: Path, **settings) -> Checkpoints:
    return Checkpoints(folder=folder, notices=None, **settings)


class Augmented(Points):
    """Draws from every global generator for each sample."""

    def __getitem__(self, index):
        values, kind = super().__getitem__(index)
        noise = torch.rand(6) + torch.from_numpy(np.random.rand(6)).float() + random.random()
        return values + noise, kind


def noisy_collate(samples):
    """Draws for each batch, as a masking collator does."""
    batch = torch.utils.data.default_collate(samples)
    return {"input_ids": batch[0] * (torch.rand_like(batch[0]) > 0.2) + random.random(), "labels": batch[1]}


def collated_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"])


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("stop", [3, 5], ids=["mid-epoch", "epoch boundary"])
@pytest.mark.parametrize("drawing", ["in __getitem__", "in the collator"])
def test_exactness_matrix(workers, stop, drawing):
    """40 samples in windows of 8: an epoch is 5 steps."""
    collator = {"collate": noisy_collate, "loss": collated_loss} if drawing == "in the collator" else {}

    def make_job():
        return point_job(
            data=Augmented(40),
            epochs=2,
            optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
            schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
            clip_norm=1.0,
            **collator,
        )

    loader = LoaderSettings(workers=workers)
    assert_exact_resume(make_job, stop, plan=Plan(micro_batching="fixed", micro_batch=3, loader=loader))


@pytest.mark.parametrize(
    "plan",
    [Plan(), Plan(precision="bf16"), Plan(micro_batching="partition", recompute="blocks")],
    ids=["packed", "bf16", "partition, recomputed"],
)
def test_text_with_dropout_resumes_exactly(plan):
    assert_exact_resume(lambda: text_job(model=classifier(hidden_dropout_prob=0.3)), [1, 4], plan=plan)


def test_fp16_resumes_with_its_loss_scale():
    plan = Plan(precision="fp16", micro_batching="fixed", micro_batch=4)
    assert_exact_resume(lambda: point_job(loss=lambda m, b: 300 * collated_pair(m, b)), 2, plan=plan)


def collated_pair(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_running_statistics_and_streams_resume_exactly():
    assert_exact_resume(lambda: point_job(model=perceptron(norm=True)), 3)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts(20))

    assert_exact_resume(lambda: text_job(data=Stream(), epochs=None, optimizer_steps=6), 4)


def test_another_micro_batching_goes_on_with_the_same_windows():
    assert_exact_resume(text_job, 2, plan=EVERY, new_plan=Plan(micro_batching="packed"))


def test_a_state_that_is_not_the_same_is_noticed():
    class Forgetful(torch.optim.SGD):
        def load_state_dict(self, state):
            pass

    def make_job():
        return point_job(optimizer=lambda model: Forgetful(model.parameters(), lr=0.1, momentum=0.9))

    with pytest.raises(NotEquivalentError, match="Stopped before step 3"):
        assert_exact_resume(make_job, 3)


def test_the_users_random_numbers_go_on(tmp_path):
    def draws(folder, stop=None):
        found = []
        for step in Run(point_job(), EVERY, checkpoints=quiet(folder)):
            found.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
            if step.index == stop:
                break
        return found

    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = draws(tmp_path / "whole")
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    first = draws(tmp_path / "parts", stop=2)[:2]
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    assert first + draws(tmp_path / "parts") == expected


def test_state_of_ones_own_is_kept(tmp_path):
    class Average:
        def __init__(self):
            self.value = 0.0

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    average = Average()
    for step in Run(point_job(), EVERY, checkpoints=quiet(tmp_path, extra_state={"average": average})):
        average.value += step.loss
        if step.index == 2:
            break
    loaded = Average()
    run = Run(point_job(), EVERY, checkpoints=quiet(tmp_path, extra_state={"average": loaded}))
    assert run.next_step == 2 and 0 < loaded.value < average.value
    with pytest.raises(ResumeError, match="'other'.*not in the checkpoint"):
        Run(point_job(), EVERY, checkpoints=quiet(tmp_path, extra_state={"other": loaded}))


def test_a_finished_run_makes_no_further_step(tmp_path):
    list(Run(point_job(), EVERY, checkpoints=quiet(tmp_path)))
    assert list(Run(point_job(), EVERY, checkpoints=quiet(tmp_path))) == []
    assert len(list(Run(point_job(), EVERY, checkpoints=quiet(tmp_path, resume=False)))) == 5


def test_auto_takes_the_plan_that_was_saved(tmp_path):
    first = Run(text_job(), "auto", checkpoints=quiet(tmp_path))
    list(first)
    assert Run(text_job(), "auto", checkpoints=quiet(tmp_path)).plan.micro_batching == first.plan.micro_batching


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_another_job_is_refused(tmp_path):
    list(Run(point_job(), EVERY, checkpoints=quiet(tmp_path)))
    with pytest.raises(ResumeError, match="seed was 0 and is 1"):
        Run(point_job(seed=1), EVERY, checkpoints=quiet(tmp_path))
    with pytest.raises(ResumeError, match="samples was 40 and is 48"):
        Run(point_job(48), EVERY, checkpoints=quiet(tmp_path))
    with pytest.raises(ResumeError, match="schedule was not saved"):
        Run(point_job(schedule=lambda o, n: torch.optim.lr_scheduler.ConstantLR(o)), EVERY, checkpoints=quiet(tmp_path))


@pytest.mark.parametrize("new_batch", [4, 7, 16])
def test_a_new_global_batch_is_refused_or_goes_on_at_the_next_sample(tmp_path, new_batch):
    class Numbered(Points):
        def __getitem__(self, index):
            return (*super().__getitem__(index), index)

    seen: list[int] = []

    def loss(model, batch):
        seen.extend(batch[2].tolist())
        return collated_pair(model, batch)

    run = Run(point_job(data=Numbered(40), loss=loss), EVERY, checkpoints=quiet(tmp_path))
    seen.clear()  # of what was tried before the first step
    for step in run:
        if step.index == 2:
            break
    del seen[16:]
    job = point_job(data=Numbered(40), loss=loss, global_batch=new_batch)
    with pytest.raises(ResumeError, match=rf"was 8 and is {new_batch}.*allow_new_global_batch"):
        Run(job, EVERY, checkpoints=quiet(tmp_path))
    run = Run(job, EVERY, checkpoints=quiet(tmp_path, allow_new_global_batch=True))
    del seen[16:]
    steps = list(run)
    assert sorted(seen) == list(range(40)), "no sample lost, none repeated"
    assert run.optimizer_steps == 2 + -(-24 // new_batch) == 2 + len(steps)
    order = [SampleOrder(40, 8).sample_at(0, offset) for offset in range(40)]
    assert set(seen[16 : 16 + min(new_batch, 24)]) == set(order[16 : 16 + new_batch])


def test_a_broken_checkpoint_is_passed_over_and_named(tmp_path):
    for step in Run(point_job(), EVERY, checkpoints=quiet(tmp_path)):
        if step.index == 3:
            break
    newest = max(tmp_path.glob("step-*"))
    victim = next(newest.glob("*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[-3] ^= 1
    victim.write_bytes(content)
    run = Run(point_job(), EVERY, checkpoints=quiet(tmp_path))
    assert run.next_step == 2
    assert any(newest.name in reason.because for reason in run.reasons)
    victim.write_bytes(content[:100])
    for other in tmp_path.glob("step-*"):
        (other / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match="no checkpoint in it verifies"):
        Run(point_job(), EVERY, checkpoints=quiet(tmp_path))


def test_a_full_disk_does_not_end_the_training(tmp_path, monkeypatch):
    from nearpeak.train import saver

    def full(*_):
        raise OSError(28, "No space left on device")

    def train() -> list[int]:
        steps = []
        for step in Run(point_job(), EVERY, checkpoints=quiet(tmp_path)):
            steps.append(step.index)
            if step.index == 1:
                monkeypatch.setattr(saver, "write", full)
            if step.index == 3:
                monkeypatch.undo()
        return steps

    with pytest.warns(RuntimeWarning, match="was not saved"):
        assert train() == [0, 1, 2, 3, 4]
    assert Run(point_job(), EVERY, checkpoints=quiet(tmp_path)).next_step == 5


# -- notices -----------------------------------------------------------------------------------------------------------


def test_a_notice_stops_at_a_step_boundary_with_everything_saved(tmp_path):
    """The whole training's losses are those of the uninterrupted one."""
    expected = [step.loss for step in Run(point_job(), EVERY)]
    seldom = Plan(micro_batching="fixed", micro_batch=3, checkpoint_every=1000, loader=LoaderSettings(workers=0))
    losses: list[float] = []

    def train() -> None:
        for step in Run(point_job(), seldom, checkpoints=Checkpoints(folder=tmp_path, notices=["signals"])):
            losses.append(step.loss)
            if step.index == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(Preempted) as caught:
        train()
    assert caught.value.code == PREEMPTED_EXIT_CODE == 75
    run = Run(point_job(), seldom, checkpoints=quiet(tmp_path))
    assert run.next_step == len(losses) < 5
    assert losses + [step.loss for step in run] == expected


def test_advice_brings_a_checkpoint_soon_and_the_run_goes_on(tmp_path):
    """A machine that is only likely to vanish goes on working; SIGCONT is advice, too."""
    settings = Checkpoints(folder=tmp_path, notices=["signals"], every=1000, at_end=False)
    steps = []
    for step in Run(point_job(epochs=2), EVERY, checkpoints=settings):
        steps.append(step.index)
        if step.index == 2:
            os.kill(os.getpid(), signal.SIGCONT)
    assert steps == list(range(10))
    (saved,) = CheckpointFolder(tmp_path).checkpoints()
    assert saved.step == 4, "with the step that was under way, and once"


def test_cadence_and_number_of_checkpoints_can_be_set_apart_from_the_plan(tmp_path):
    run = Run(point_job(epochs=2), EVERY, checkpoints=quiet(tmp_path, every=3, kept=1, at_end=False))
    list(run)
    assert [each.step for each in CheckpointFolder(tmp_path).checkpoints()] == [9]
    told = [reason for reason in run.reasons if reason.choice == "checkpoint_every=3"]
    assert told[0].because == "as set"
    assert "A loss takes" in told[-1].because


RANKS = Path(__file__).parent / "resume_ranks.py"


def torchrun(count: int, folder: Path, *arguments: str, code: int = 0) -> list[dict]:
    """What each rank wrote about its part of the training."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"] if count > 1 else []
    command = [sys.executable, *launcher, str(RANKS), str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(RANKS.parent), *sys.path])}
    for stale in folder.glob("rank-*.json"):
        stale.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert (done.returncode != 0) == (code != 0), done.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.slow
def test_one_rank_two_ranks_one_rank(tmp_path):
    """Every window holds the same samples, whoever trains it; a notice on one of two ranks saves once and resumes."""
    order = SampleOrder(40, 8)
    expected = [sorted(order.window(k).indices) for k in range(10)]
    windows: dict[int, list[int]] = {}
    whole = [step.loss for step in Run(text_job(epochs=2), EVERY)]
    losses: dict[int, float] = {}
    for count, arguments, code in ((1, ["--stop", "3"], 0), (2, ["--notice", "6", "--on-rank", "1"], 1), (1, [], 0)):
        parts = torchrun(count, tmp_path, *arguments, code=code)
        for part in parts:
            assert part["steps"] == parts[0]["steps"]
            for step, members in zip(part["steps"], part["samples"], strict=True):
                windows.setdefault(step, []).extend(members)
        losses |= dict(zip(parts[0]["steps"], parts[0]["losses"], strict=True))
        if code:
            assert {part["exit"] for part in parts} == {PREEMPTED_EXIT_CODE}
    assert [sorted(windows[k]) for k in range(10)] == expected
    assert [losses[k] for k in range(10)] == pytest.approx(whole, abs=1e-5)
