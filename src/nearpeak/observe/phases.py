"""`PhaseClock`: every moment of the training thread belongs to one phase. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable

from nearpeak.recording.schema import PHASES

__all__ = [
    "BACKWARD",
    "CHECKPOINT",
    "COMMUNICATION",
    "COPY",
    "EVALUATION",
    "FORWARD",
    "INPUT",
    "LOGGING",
    "NAMES",
    "OPTIMIZER",
    "OTHER",
    "PhaseClock",
]

NAMES = tuple(PHASES)
INPUT, COPY, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, LOGGING, EVALUATION, CHECKPOINT, OTHER = range(len(NAMES))


class PhaseClock:
    """Adds the time since the last switch to the phase that was running; phases are exclusive, their sum is the wall.

    Phases are numbers into NAMES: this runs several times a step, inside the user's loop.
    """

    __slots__ = ("current", "now", "since", "spent")

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.reset()

    def reset(self) -> None:
        """Nothing spent yet."""
        self.current = OTHER
        self.since = self.now()
        self.spent = [0] * len(NAMES)

    def switch(self, phase: int) -> int:
        """Begin a phase; returns the one that ran."""
        moment = self.now()
        before = self.current
        self.spent[before] += moment - self.since
        self.since = moment
        self.current = phase
        return before

    def book(self, phase: int, began_ns: int, ended_ns: int) -> None:
        """Give a stretch of time that has just passed to a phase; what ran before and after it stays as it was."""
        self.spent[self.current] += began_ns - self.since
        self.spent[phase] += ended_ns - began_ns
        self.since = ended_ns

    def take(self) -> list[int]:
        """The nanoseconds of each phase so far; counting begins anew."""
        self.switch(self.current)
        spent, self.spent = self.spent, [0] * len(NAMES)
        return spent
