"""`StepWatch`: turns what the hooks see into steps and their phases. Knows nothing of torch; standard library only.

A step ends with an update of the leading optimizer: the first that was seen, as long as it goes on. Others that update
within it (a GAN's second one, one for each group of parameters) belong to the step. An update that a gradient scaler
skips ends a step as well: its time has passed.

Between hooks the training thread is in the phase that the last one left it in: after a batch has arrived in `forward`
(in `other` until the model is called, once it is known which calls are the model's), after a backward pass and after
an update in `other`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from nearpeak.observe.phases import (
    BACKWARD,
    CHECKPOINT,
    COMMUNICATION,
    EVALUATION,
    FORWARD,
    INPUT,
    LOGGING,
    OPTIMIZER,
    OTHER,
    PhaseClock,
)
from nearpeak.observe.tally import Tally

__all__ = [
    "BACKWARD_BEGINS",
    "BACKWARD_ENDS",
    "FORWARD_BEGINS",
    "MOST_WAITING",
    "UPDATE_BEGINS",
    "UPDATE_ENDS",
    "DeviceSide",
    "Occurrence",
    "StepWatch",
]

MOST_WAITING = 20_000
"""Steps held in memory when nobody takes them away."""
MOST_OF_OTHERS = 16
"""Updates of another optimizer after which the leading one is taken to have ended."""
FORWARD_BEGINS, BACKWARD_BEGINS, BACKWARD_ENDS, UPDATE_BEGINS, UPDATE_ENDS = range(5)
"""Boundaries that a device's clock is told of."""
CLOSED_TO_OTHERS = (EVALUATION, CHECKPOINT)
"""All that happens inside these belongs to them."""


class DeviceSide(Protocol):
    """A device's own clock: `observe.device` has the one of CUDA."""

    def mark(self, boundary: int) -> None:
        """The training thread is at one of the boundaries above."""
        ...

    def close(self, tally: Tally) -> list[Tally]:
        """Take a step that has ended; give back those whose times are known by now, or never will be."""
        ...

    def rest(self) -> list[Tally]:
        """All that it still holds."""
        ...


class Occurrence:
    """An event with a duration, on its way to a row."""

    __slots__ = ("began_ns", "detail", "duration_ns", "kind", "step")

    def __init__(self, kind: str, began_ns: int, duration_ns: int | None, step: int, detail: dict[str, Any]) -> None:
        self.kind, self.began_ns, self.duration_ns, self.step, self.detail = kind, began_ns, duration_ns, step, detail


class StepWatch:
    """The training thread's side: each method is called by one hook, in the order of the user's loop."""

    def __init__(
        self,
        now: Callable[[], int] = time.perf_counter_ns,
        cpu_now: Callable[[], int] = time.process_time_ns,
        main_cpu_now: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.clock = PhaseClock(now)
        self._cpu_now, self._main_cpu_now = cpu_now, main_cpu_now
        self.device: DeviceSide | None = None
        """Told of the boundaries of phases, if the training computes on a device with a clock of its own."""
        self.on_start: Callable[[], None] | None = None
        """At the first sign of training."""
        self.on_close: Callable[[Tally], None] | None = None
        """At the end of a step, on the training thread."""
        self.reset()

    def reset(self) -> None:
        """As if nothing had been seen: a forked process has trained nothing yet."""
        self.clock.reset()
        self.tally = Tally()
        self.closed: deque[Tally] = deque()
        self.occurrences: deque[Occurrence] = deque(maxlen=MOST_WAITING)
        self.lost = 0
        """Steps that were thrown away because nobody took them."""
        self.steps = self.updates = 0
        """Closed ones; updates of all optimizers."""
        self.batches = 0
        """Arrived ones."""
        self.started = False
        self.has_peers = False
        """Other ranks may be waited for in a backward pass: its CPU time, which tells, is read for that alone."""
        self.model_known = False
        """The model's calls are hooked: what precedes one is not forward."""
        self.training_loaders: set[int] = set()
        """Those whose batches were followed by a backward pass."""
        self._began_ns = self._cpu_ns = self._main_cpu_ns = 0
        self._loader: int | None = None
        self._arrived: deque[tuple[int | None, int | None, int | None]] = deque()
        """Batches that no backward pass has followed yet."""
        self._training_models: set[int] = set()
        self._evaluation_began: tuple[int, int] | None = None
        self._leader: int | None = None
        self._updates_of_others = 0
        self._in_update = False
        self._backward_depth = self._forward_depth = self._backward_cpu_ns = 0

    @property
    def without_loader(self) -> bool:
        """No loader of torch's has given a batch to the training thread."""
        return self._loader is None

    @property
    def in_backward(self) -> bool:
        return self._backward_depth > 0

    # Input

    def loader_starts(self, loader: int) -> int:
        """A loader is asked for an iterator: it may start its workers. Returns the phase to come back to."""
        self._start()
        if self.clock.current == EVALUATION and loader in self.training_loaders:
            self._end_evaluation(OTHER)
        return self.enter(INPUT)

    def batch_wanted(self, loader: int) -> int:
        """A loader is asked for its next batch; `loader` tells loaders apart. Returns the phase to come back to."""
        self._start()
        if self.clock.current == EVALUATION and loader in self.training_loaders:
            self._end_evaluation(INPUT)
            return OTHER
        if self.clock.current in CLOSED_TO_OTHERS:
            return self.clock.current
        return self.clock.switch(INPUT)

    def batch_arrived(self, loader: int, samples: int | None, tokens: int | None, padded_tokens: int | None) -> None:
        """It has come; tokens are None where the batch has none, or where they cannot be told from padding."""
        self._loader = loader
        self.batches += 1
        if self.clock.current in CLOSED_TO_OTHERS:
            return
        self._arrived.append((samples, tokens, padded_tokens))
        self.clock.switch(OTHER if self.model_known else FORWARD)

    def _count_arrived(self, left: int) -> None:
        while len(self._arrived) > left:
            self._count(*self._arrived.popleft())

    def _count(self, samples: int | None, tokens: int | None, padded_tokens: int | None) -> None:
        tally = self.tally
        tally.samples += samples or 0
        tally.padded_tokens_known = tally.padded_tokens_known and padded_tokens is not None
        tally.padded_tokens = (tally.padded_tokens or 0) + (padded_tokens or 0) if tally.padded_tokens_known else None
        tally.tokens_known = tally.tokens_known and tokens is not None
        tally.tokens = (tally.tokens or 0) + (tokens or 0) if tally.tokens_known else None

    def batch_given(self, samples: int | None, tokens: int | None, padded_tokens: int | None) -> None:
        """What the model was called with, where no loader is in sight."""
        self._count(samples, tokens, padded_tokens)

    def batch_refused(self, before: int) -> None:
        """The loader is exhausted, or raised."""
        self.leave(before)

    def fetched(self, spent_ns: int, cpu_ns: int) -> None:
        """Dataset and collator ran inside this process."""
        if self.clock.current == INPUT:
            self.tally.fetch_ns = (self.tally.fetch_ns or 0) + spent_ns
            self.tally.fetch_cpu_ns += cpu_ns

    # Model

    def forward_begins(self, model: int, gradients: bool, training: bool) -> None:
        """An outermost module is called."""
        self._forward_depth += 1
        if self._forward_depth > 1 or self._backward_depth or self.clock.current == CHECKPOINT:
            return
        if gradients:
            self._start()
            if training:
                self._training_models.add(model)
            self._end_evaluation(FORWARD) if self.clock.current == EVALUATION else self.clock.switch(FORWARD)
            if self.device is not None:
                self.device.mark(FORWARD_BEGINS)
        elif self.clock.current != EVALUATION:
            self._begin_evaluation() if self._looks_like_evaluation(model, training) else self.clock.switch(FORWARD)

    def forward_ends(self) -> None:
        """What follows until the backward pass is the loss: it stays in forward."""
        self._forward_depth = max(0, self._forward_depth - 1)

    def _looks_like_evaluation(self, model: int, training: bool) -> bool:
        """Without gradients: of a model that was trained, in evaluation mode, or on a loader's data that is not
        trained on. A teacher, or a frozen part, is neither."""
        if not self._training_models:
            return False
        foreign = self._loader is not None and self._loader not in self.training_loaders
        return model in self._training_models and (not training or (foreign and bool(self.training_loaders)))

    def evaluation_called(self, was_training: bool) -> None:
        """`eval()` of a module: once training is on its way, an evaluation follows."""
        if self.steps and was_training and self.clock.current not in (*CLOSED_TO_OTHERS, BACKWARD):
            self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        self.clock.switch(EVALUATION)
        self._evaluation_began = (self.clock.since, self.steps)

    def _end_evaluation(self, phase: int) -> None:
        self.clock.switch(phase)
        if self._evaluation_began is not None:
            began_ns, step = self._evaluation_began
            self.happened("evaluation", began_ns, self.clock.since - began_ns, step)
        self._evaluation_began = None

    # Backward and update

    def backward_begins(self, exchanges: bool | None = None) -> None:
        """Also called inside another one, by checkpointing that recomputes with gradients of its own. `exchanges`:
        the ranks will exchange gradients in it; None where nobody could know."""
        self._backward_depth += 1
        if self._backward_depth > 1:
            return
        self._start()
        if self._loader is not None:
            self.training_loaders.add(self._loader)
        if self.clock.current == EVALUATION:
            self._end_evaluation(BACKWARD)
        else:
            self.clock.switch(BACKWARD)
        if self.device is not None:
            self.device.mark(BACKWARD_BEGINS)
        self.tally.micro_batches += 1
        if exchanges is not None:
            self.tally.exchanges = (self.tally.exchanges or 0) + int(exchanges)
        if self._arrived:
            self._count(*self._arrived.popleft())
        if self.has_peers:
            self._backward_cpu_ns = self._cpu_now()

    def backward_ends(self) -> None:
        """The host's side of it is over; a device may go on."""
        self._backward_depth = max(0, self._backward_depth - 1)
        if self._backward_depth:
            return
        if self.has_peers and self.clock.current != COMMUNICATION:
            self._count_backward_cpu()
        if self.device is not None:
            self.device.mark(BACKWARD_ENDS)
        self.clock.switch(OPTIMIZER if self._in_update else OTHER)

    def gradients_ready(self) -> None:
        """All gradients of this rank are computed: what is left of the backward pass waits for the other ranks."""
        if self.clock.current == BACKWARD:
            if self.has_peers:
                self._count_backward_cpu()
            self.clock.switch(COMMUNICATION)

    def _count_backward_cpu(self) -> None:
        self.tally.backward_cpu_ns = (self.tally.backward_cpu_ns or 0) + self._cpu_now() - self._backward_cpu_ns

    def update_begins(self, optimizer: int) -> None:
        """An optimizer's step is called."""
        self._start()
        if self.clock.current == EVALUATION:
            self._end_evaluation(OPTIMIZER)
        self.clock.switch(OPTIMIZER)
        self._in_update = True
        if self.device is not None:
            self.device.mark(UPDATE_BEGINS)

    def update_ends(self, optimizer: int) -> None:
        """It is done; if it is the leading one, so is the step."""
        if self.device is not None:
            self.device.mark(UPDATE_ENDS)
        self.clock.switch(OTHER)
        self._in_update = False
        self.tally.updates += 1
        self.updates += 1
        if self._leads(optimizer):
            self._close()

    def update_skipped(self, optimizer: int) -> None:
        """A scaler found the gradients unusable and made no update."""
        self.tally.skipped_updates = (self.tally.skipped_updates or 0) + 1
        self.clock.switch(OTHER)
        if self._leads(optimizer):
            self._close()

    def _leads(self, optimizer: int) -> bool:
        if self._leader is None or optimizer == self._leader:
            self._leader, self._updates_of_others = optimizer, 0
            return True
        self._updates_of_others += 1
        if self._updates_of_others >= MOST_OF_OTHERS:
            self._leader, self._updates_of_others = optimizer, 0
            return True
        return False

    def scaled(self, scale: float, *, skipped: bool) -> None:
        """The loss scale of the step that begins; `skipped` tells of an update that nobody has counted."""
        self.tally.loss_scale = scale
        self.tally.skipped_updates = (self.tally.skipped_updates or 0) + int(skipped)

    # All else

    def span_begins(self, phase: int) -> tuple[int, int] | None:
        """Saving or evaluating, told by whoever does it; None inside another span, and before training."""
        current = self.clock.current
        if not self.started or current in (CHECKPOINT, phase):
            return None
        if current == EVALUATION:
            self._end_evaluation(phase)
            return OTHER, self.clock.since
        before = self.clock.switch(phase)
        return before, self.clock.since

    def span_ends(self, token: tuple[int, int], kind: str) -> None:
        """It is done; `token` is what its begin returned."""
        before, began_ns = token
        self.leave(before)
        self.happened(kind, began_ns, self.clock.now() - began_ns)

    def enter(self, phase: int) -> int:
        """Begin a phase inside another; returns what `leave` wants."""
        current = self.clock.current
        return current if current in CLOSED_TO_OTHERS else self.clock.switch(phase)

    def leave(self, before: int) -> None:
        """Go back to the phase that ran before."""
        if self.clock.current != before:
            self.clock.switch(before)

    def synced(self, began_ns: int, ended_ns: int) -> None:
        """The training thread read a value from a tensor, or waited for the device."""
        self.tally.syncs += 1
        self.tally.sync_ns += ended_ns - began_ns
        if self.clock.current == OTHER or (self.clock.current == FORWARD and not self._forward_depth):
            self.clock.book(LOGGING, began_ns, ended_ns)

    def copied(self, began_ns: int, ended_ns: int, copied_bytes: int, pageable: bool, phase: int) -> None:
        """Data went to a device."""
        tally = self.tally
        tally.copies += 1
        tally.copied_bytes += copied_bytes
        tally.pageable_bytes += copied_bytes if pageable else 0
        if self.clock.current not in CLOSED_TO_OTHERS:
            self.clock.book(phase, began_ns, ended_ns)

    def happened(
        self, kind: str, began_ns: int, duration_ns: int | None, step: int | None = None, **detail: Any
    ) -> None:
        """Something for the record that is not part of every step."""
        self.occurrences.append(Occurrence(kind, began_ns, duration_ns, self.steps if step is None else step, detail))

    def _start(self) -> None:
        """The first step begins with the first sign of training, not with the import of torch."""
        if not self.started:
            self.started = True
            self.tally = Tally()
            self.clock.take()
            self._began_ns = self.clock.since
            self._cpu_ns, self._main_cpu_ns = self._cpu_now(), self._main_cpu_now()
            if self.on_start is not None:
                self.on_start()

    def _close(self) -> None:
        """Hand the step over and begin the next. A loader that reads one batch ahead has brought the next one's."""
        self._count_arrived(left=1)
        tally, self.tally = self.tally, Tally()
        tally.spent = self.clock.take()
        tally.ended_ns = self.clock.since
        tally.wall_ns = tally.ended_ns - self._began_ns
        self._began_ns = tally.ended_ns
        cpu_ns, main_cpu_ns = self._cpu_now(), self._main_cpu_now()
        tally.cpu_ns, tally.main_cpu_ns = cpu_ns - self._cpu_ns, main_cpu_ns - self._main_cpu_ns
        self._cpu_ns, self._main_cpu_ns = cpu_ns, main_cpu_ns
        tally.index = self.steps
        self.steps += 1
        if self.on_close is not None:
            self.on_close(tally)
        for each in (tally,) if self.device is None else self.device.close(tally):
            if len(self.closed) >= MOST_WAITING:
                self.closed.popleft()
                self.lost += 1
            self.closed.append(each)
