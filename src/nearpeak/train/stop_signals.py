"""Signals that ask a process to end, as Slurm, Kubernetes and torchrun send them, taken as notices.

SIGTERM: Kubernetes to process 1 of a container, Slurm at a job's end or preemption, torchrun to every worker when the
machine is taken or *when another worker died* (see `everyone_is_here`). SIGUSR1: what `sbatch --signal=B:USR1@60`
sends ahead. SIGCONT: Slurm sends it before SIGTERM, but also when a suspended job goes on: no reason to stop.

SIGINT is left alone: Ctrl-C ends a run at once, also one that is about to save and leave.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from nearpeak.reason import Reason
from nearpeak.train.notices import Notice

__all__ = ["StopSignals", "ignore_stop_signals"]

SAME_REQUEST_S = 2.0
"""Slurm signals every process of a step and torchrun passes on what it gets: within this time, twice means once."""
OUTLIVE_S = 60
"""More than anybody grants between a group's SIGTERM and its SIGKILL."""
MESSAGES = {
    signal.SIGTERM: "somebody asked this process to end",
    signal.SIGUSR1: "the job's time is nearly up, or its machines are wanted",
    signal.SIGCONT: "the job was suspended and goes on, or SIGTERM is about to follow",
}
STOPPING = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """Turns signals into notices between `install()` and `restore()`; handlers that were there are called as well."""

    def __init__(self, note: Callable[[Notice], None]) -> None:
        self._note = note
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._asked_at: float | None = None
        self._is_active = False

    def install(self) -> list[Reason]:
        """Begin to listen; says which signals, or why not."""
        if threading.current_thread() is not threading.main_thread():
            because = "Python lets only the main thread handle signals, and training runs in another one here"
            return [Reason("notices.signals=off", because)]
        reasons = [self._install(number) for number in MESSAGES]
        self._is_active = True
        return reasons

    def restore(self) -> None:
        """Put back what was there, unless somebody put a handler on top of ours, which then passes signals through."""
        self._is_active = False
        for number, before in self._before.items():
            if signal.getsignal(number) == self._received:
                signal.signal(number, before)

    def _install(self, number: signal.Signals) -> Reason:
        if signal.getsignal(number) is None:
            because = "a handler that Python cannot put back is installed, by faulthandler for instance"
            return Reason(f"notices.{number.name}=off", because)
        self._before[number] = signal.signal(number, self._received)
        return Reason(f"notices.{number.name}=on", MESSAGES[number])

    # Runs between any two instructions of the main thread: takes no lock and prints nothing.
    def _received(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            _received_by_child(number)
        elif not self._is_active:
            self._pass_on(number, frame)
        elif number == signal.SIGTERM and self._is_second():
            _die_of(number)
        else:
            name = signal.Signals(number)
            self._note(Notice("signals", name.name, MESSAGES[name], stop=number in STOPPING))
            if callable(self._before.get(number)):
                self._before[number](number, frame)

    def _is_second(self) -> bool:
        """Whether this asks again: whoever does wants no checkpoint, but an end."""
        now = time.monotonic()
        self._asked_at = self._asked_at or now
        return now - self._asked_at > SAME_REQUEST_S

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL and number in STOPPING:
            _die_of(number)


def ignore_stop_signals() -> None:
    """For helpers of the training process (loader workers): to be called in each of them, first thing.

    torchrun and Slurm signal whole process groups. A worker that died of it would fail the very step after which the
    run saves. A second request, or `OUTLIVE_S`, still ends it, so that nobody waits for a helper that hangs. Not by
    SIG_IGN: programs that a dataset starts would inherit it.
    """
    asked_at: list[float] = []

    def received(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            asked_at.append(time.monotonic())
            signal.alarm(OUTLIVE_S)
            if asked_at[-1] - asked_at[0] > SAME_REQUEST_S:
                _die_of(number)

    for number in STOPPING:
        signal.signal(number, received)


def _received_by_child(number: int) -> None:
    """A forked child has our handlers, but is not the run: `terminate()` must end it, and notices are not for it."""
    if number == signal.SIGTERM:
        _die_of(number)


def _die_of(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
