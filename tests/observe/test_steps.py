"""Steps and phases from what hooks tell, with a clock that the test turns."""

from __future__ import annotations

import pytest

from nearpeak.observe.phases import CHECKPOINT, COMMUNICATION, COPY, EVALUATION, NAMES, OTHER
from nearpeak.observe.steps import StepWatch
from nearpeak.observe.tally import Tally, to_row

TRAIN, VALIDATION = 1, 2
MODEL, TEACHER = 10, 11
FIRST, SECOND = 100, 101


class Loop:
    """A training loop in which every action takes the time that the test says."""

    def __init__(self, *, model_known: bool = True) -> None:
        self.time = 0
        self.watch = StepWatch(lambda: self.time, lambda: self.time, lambda: self.time)
        self.watch.model_known = model_known

    def wait(self, spent: int) -> None:
        self.time += spent

    def batch(self, spent: int, loader: int = TRAIN, samples: int = 4) -> None:
        self.watch.batch_wanted(loader)
        self.wait(spent)
        self.watch.batch_arrived(loader, samples, None, None)

    def forward(self, spent: int, *, gradients: bool = True, training: bool = True, model: int = MODEL) -> None:
        self.watch.forward_begins(model, gradients, training)
        self.wait(spent)
        self.watch.forward_ends()

    def backward(self, spent: int) -> None:
        self.watch.backward_begins()
        self.wait(spent)
        self.watch.backward_ends()

    def update(self, spent: int, optimizer: int = FIRST) -> None:
        self.watch.update_begins(optimizer)
        self.wait(spent)
        self.watch.update_ends(optimizer)

    def step(self) -> None:
        self.batch(1)
        self.forward(2)
        self.backward(3)
        self.update(4)

    def take(self) -> Tally:
        return self.watch.closed.popleft()

    def spent(self) -> dict[str, int]:
        tally = self.take()
        assert sum(tally.spent) == tally.wall_ns
        return {name: value for name, value in zip(NAMES, tally.spent, strict=True) if value}


def test_phases_are_exclusive_and_sum_to_the_step() -> None:
    loop = Loop()
    loop.step()
    assert loop.spent() == {"input": 1, "forward": 2, "backward": 3, "optimizer": 4}
    loop.wait(5)
    loop.batch(10)
    loop.wait(1)
    before = loop.watch.enter(COPY)
    loop.wait(20)
    loop.watch.leave(before)
    loop.forward(30)
    loop.wait(7)  # the loss
    loop.backward(40)
    loop.wait(2)
    loop.update(50)
    assert loop.spent() == {
        "input": 10,
        "copy": 20,
        "forward": 37,
        "backward": 40,
        "optimizer": 50,
        "other": 8,
    }


def test_the_first_step_begins_with_training() -> None:
    loop = Loop()
    loop.wait(1000)
    loop.step()
    assert loop.take().wall_ns == 10


def test_without_a_known_model_all_from_batch_to_backward_is_forward() -> None:
    loop = Loop(model_known=False)
    loop.batch(1)
    loop.wait(9)
    loop.backward(3)
    loop.update(4)
    assert loop.spent() == {"input": 1, "forward": 9, "backward": 3, "optimizer": 4}


def test_accumulation_is_one_step() -> None:
    loop = Loop()
    for _ in range(4):
        loop.batch(1)
        loop.forward(2)
        loop.backward(3)
    loop.update(4)
    tally = loop.take()
    assert (tally.micro_batches, tally.samples, tally.wall_ns, tally.index) == (4, 16, 28, 0)


def test_a_backward_inside_another_is_part_of_it() -> None:
    loop = Loop()
    loop.batch(1)
    loop.watch.backward_begins()
    loop.forward(5)
    loop.backward(5)
    loop.wait(1)
    loop.watch.backward_ends()
    loop.update(1)
    tally = loop.take()
    assert tally.micro_batches == 1
    assert tally.spent[NAMES.index("backward")] == 11


@pytest.mark.parametrize("evaluates", ["eval", "no_grad", "span"])
def test_evaluation_is_all_between_two_training_batches(evaluates: str) -> None:
    loop = Loop()
    loop.step()
    loop.take()
    token = None
    if evaluates == "eval":
        loop.watch.evaluation_called(True)
    if evaluates == "span":
        token = loop.watch.span_begins(EVALUATION)
    for _ in range(3):
        loop.batch(1, VALIDATION)
        loop.forward(6, gradients=False, training=False)
        loop.watch.synced(loop.time, loop.time + 1)
        loop.wait(1)
    if token is not None:
        loop.watch.span_ends(token, "evaluation")
    loop.step()
    spent = loop.spent()
    first_wait = 1 if evaluates == "no_grad" else 0  # nobody could know yet what it was for
    assert spent["evaluation"] == 24 - first_wait
    assert (spent["forward"], spent["backward"]) == (2, 3)
    assert [each.kind for each in loop.watch.occurrences] == ["evaluation"]
    assert loop.watch.closed == type(loop.watch.closed)()


def test_samples_of_an_evaluation_are_not_trained_on() -> None:
    loop = Loop()
    loop.step()
    loop.take()
    loop.watch.evaluation_called(True)
    loop.batch(1, VALIDATION, samples=1000)
    loop.forward(1, gradients=False, training=False)
    loop.step()
    assert loop.take().samples == 4


def test_a_teacher_is_no_evaluation() -> None:
    loop = Loop()
    for _ in range(3):
        loop.batch(1)
        loop.forward(5, gradients=False, training=False, model=TEACHER)
        loop.forward(2)
        loop.backward(3)
        loop.update(4)
        assert loop.spent() == {"input": 1, "forward": 7, "backward": 3, "optimizer": 4}


def test_saving_ends_an_evaluation() -> None:
    loop = Loop()
    loop.step()
    loop.take()
    loop.watch.evaluation_called(True)
    loop.wait(5)
    token = loop.watch.span_begins(CHECKPOINT)
    assert token is not None
    assert loop.watch.span_begins(CHECKPOINT) is None  # inside itself
    assert loop.watch.enter(COMMUNICATION) == CHECKPOINT  # all inside belongs to it
    loop.wait(9)
    loop.watch.span_ends(token, "checkpoint")
    loop.step()
    assert loop.spent() == {
        "evaluation": 5,
        "checkpoint": 9,
        "input": 1,
        "forward": 2,
        "backward": 3,
        "optimizer": 4,
    }
    assert [each.kind for each in loop.watch.occurrences] == ["evaluation", "checkpoint"]


def test_reading_a_value_outside_the_passes_is_logging() -> None:
    loop = Loop()
    loop.step()
    loop.take()
    loop.wait(2)
    began = loop.time
    loop.wait(30)
    loop.watch.synced(began, loop.time)
    loop.wait(1)
    loop.step()
    tally = loop.take()
    assert (tally.syncs, tally.sync_ns) == (1, 30)
    assert (tally.spent[NAMES.index("logging")], tally.spent[OTHER]) == (30, 3)


def test_two_optimizers_make_one_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.batch(1)
        loop.backward(3)
        loop.update(4, FIRST)
        loop.backward(5)
        loop.update(6, SECOND)
    assert [loop.take().index for _ in range(3)] == [0, 1, 2]
    assert not loop.watch.closed


def test_another_optimizer_leads_once_the_first_has_ended() -> None:
    loop = Loop()
    loop.update(1, FIRST)
    for _ in range(40):
        loop.update(1, SECOND)
    assert loop.watch.steps == 1 + 40 - 15


def test_a_skipped_update_ends_a_step() -> None:
    loop = Loop()
    loop.batch(1)
    loop.backward(2)
    loop.watch.update_skipped(FIRST)
    tally = loop.take()
    assert (tally.skipped_updates, tally.updates) == (1, 0)


def test_nobody_takes_them_away() -> None:
    loop = Loop()
    for _ in range(20_010):
        loop.update(1)
    assert len(loop.watch.closed) == 20_000
    assert loop.watch.lost == 10


def test_a_row_says_what_is_unknown() -> None:
    loop = Loop()
    loop.update(5)
    row = to_row(loop.take(), 3, read_bytes=None, worker_cpu_ms=None)
    assert (row.process, row.step, row.samples, row.tokens, row.fetch_ms, row.starved_share) == (
        3,
        0,
        None,
        None,
        None,
        None,
    )
    assert row.optimizer_ms == pytest.approx(5e-6)
