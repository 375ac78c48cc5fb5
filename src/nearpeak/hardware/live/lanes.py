"""Calls that may never return, made without waiting for them for ever.

A `Lane` calls its tasks one after the other on a thread of its own, so that they do not fight over the interpreter.
When one does not return within the patience, its thread is left to it and a new one takes the rest. The task is stuck
until its thread comes back; nobody asks it anything meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Lane"]

Answer = TypeVar("Answer")
LEAVE_S = 1.0
"""How long the end of a thread is waited for: one that is in a call for longer is left behind."""


class _Round(Generic[Answer]):
    """One pass over tasks."""

    def __init__(self, tasks: Mapping[str, Callable[[], Answer]]) -> None:
        self.tasks = dict(tasks)
        self.answers: dict[str, Answer] = {}
        self.current: str | None = None
        self.since_s = time.monotonic()
        self.abandoned = False
        self.changed = threading.Condition()
        self.done = not tasks

    def run(self) -> None:
        """On the lane's thread."""
        for key, task in self.tasks.items():
            with self.changed:
                if self.abandoned:
                    return
                self.current, self.since_s = key, time.monotonic()
            answer = task()
            with self.changed:
                self.current = None
                if self.abandoned:
                    return  # what it says now is old
                self.answers[key] = answer
        with self.changed:
            self.done = True
            self.changed.notify_all()


class Lane(Generic[Answer]):
    """See the module. `ask` waits, `start` and `collect` do not. Used from one thread at a time."""

    def __init__(self, name: str, patience_s: float) -> None:
        self.name, self.patience_s = name, patience_s
        self._queue: SimpleQueue[_Round[Answer] | None] = SimpleQueue()
        self._thread = self._new_thread()
        self._stuck: dict[str, _Round[Answer]] = {}
        self._running: _Round[Answer] | None = None
        self._answers: dict[str, Answer] = {}

    def stuck_s(self, key: str) -> float | None:
        """For how long the task of this key has not returned; None if it is not stuck."""
        held = self._stuck.get(key)
        if held is not None and held.current != key:  # it came back
            del self._stuck[key]
            return None
        return None if held is None else time.monotonic() - held.since_s

    @property
    def has_stuck(self) -> bool:
        return any(self.stuck_s(key) is not None for key in list(self._stuck))

    def ask(self, tasks: Mapping[str, Callable[[], Answer]]) -> dict[str, Answer]:
        """Call the tasks, but for the stuck ones; answers of those that returned."""
        self.start(tasks)
        while self._running is not None:
            self._wait(self._running)
        return self.collect()

    def start(self, tasks: Mapping[str, Callable[[], Answer]]) -> None:
        """Begin to call the tasks, if those before are done."""
        if self._running is not None:
            return
        free = {key: task for key, task in tasks.items() if self.stuck_s(key) is None}
        if free:
            self._running = _Round(free)
            self._queue.put(self._running)

    def collect(self) -> dict[str, Answer]:
        """Answers that came since the last call; gives up on a task that takes too long."""
        if self._running is not None:
            self._look_at(self._running)
        answers, self._answers = self._answers, {}
        return answers

    @property
    def is_free(self) -> bool:
        return self._running is None

    def close(self) -> bool:
        """End the thread once its call returns; True if none is stuck in a call."""
        self._queue.put(None)
        self._thread.join(min(self.patience_s, LEAVE_S))
        return not self._thread.is_alive() and not self.has_stuck

    def _wait(self, running: _Round[Answer]) -> None:
        with running.changed:
            if not running.done:
                left_s = self.patience_s - (time.monotonic() - running.since_s)
                running.changed.wait(max(0.001, left_s))
        self._look_at(running)

    def _look_at(self, running: _Round[Answer]) -> None:
        with running.changed:
            if running.done:
                self._answers |= running.answers
                self._running = None
                return
            late = running.current is not None and time.monotonic() - running.since_s >= self.patience_s
            if not late:
                return
            running.abandoned = True
            key, answers = running.current, dict(running.answers)
        self._answers |= answers
        self._give_up(running, str(key), [k for k in running.tasks if k not in answers and k != key])

    def _give_up(self, running: _Round[Answer], key: str, rest: list[str]) -> None:
        """Leave the thread to its call, and go on without it."""
        self._stuck[key] = running
        self._queue.put(None)  # for the old thread, once it comes back
        self._queue = SimpleQueue()
        self._thread = self._new_thread()
        self._running = None
        if rest:
            self._running = _Round({k: running.tasks[k] for k in rest})
            self._queue.put(self._running)

    def _new_thread(self) -> threading.Thread:
        thread = threading.Thread(target=_work, args=(self._queue,), name=f"nearpeak-{self.name}", daemon=True)
        thread.start()
        return thread


def _work(queue: SimpleQueue[_Round[Answer] | None]) -> None:
    while (task := queue.get()) is not None:
        task.run()
