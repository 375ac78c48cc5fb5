"""When a run saves: the cadence applied to what its steps and saves are measured to take."""

from __future__ import annotations

import logging
import time
from typing import Literal

import psutil

from nearpeak.reason import Reason
from nearpeak.train.cadence import Cadence, Hazard, SaveCost
from nearpeak.train.saver import SaveTimes

__all__ = ["Rhythm"]

logger = logging.getLogger("nearpeak")

RECENT = 0.9
"""Weight of what was known in the running mean of the step time."""


class Rhythm:
    """Says for each step whether the state is to be saved after it. Only the first rank's decides."""

    def __init__(
        self, every: int | Literal["auto"], hazard: Hazard, started: float, reasons: list[Reason] | None = None
    ) -> None:
        """`started`: moment of `time.monotonic()` when the set-up began; `reasons` gets what is chosen."""
        self.reasons: list[Reason] = [] if reasons is None else reasons
        self._every = every
        self._cadence = Cadence(every_n_steps=None if every == "auto" else every, hazard=hazard)
        self._started, self._restart_s = started, 0.0
        self._step_s: float | None = None
        self._slowed_s = 0.0
        self._told = 0
        self._last_step: int | None = None
        self._due_at: int | None = None
        self._cost: SaveCost | None = None

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` updates is to be saved."""
        if self._due_at is None and self._step_s is not None:
            self._plan(step)
        if isinstance(self._every, int):
            return step % self._every == 0
        return self._due_at is not None and step >= self._due_at

    def note_step(self, wall_s: float, *, saving: bool = False) -> None:
        """A step took so long, waits for a save left out; `saving`: one was being written beside it.

        The first step, which warms up, only ends the time that a restart costs.
        """
        if self._step_s is None and not self._restart_s:
            self._restart_s = time.monotonic() - self._started
            return
        if saving and self._step_s is not None:
            self._slowed_s += wall_s - self._step_s
            return
        # A clock that stands still must not divide by zero.
        seen = max(wall_s, 1e-6)
        self._step_s = seen if self._step_s is None else RECENT * self._step_s + (1 - RECENT) * seen

    def note_save(self, step: int, times: SaveTimes) -> None:
        """A save began after `step`; what the one before it took is known by now."""
        self._last_step, self._due_at = step, None
        if times.durable_ms:
            # Writing takes time from the steps beside it; what it seems to give them is noise.
            stall_s = (times.stall_ms + times.waited_for_previous_ms) / 1e3 + max(0.0, self._slowed_s)
            self._cost = SaveCost(stall_s=stall_s, persist_s=times.durable_ms / 1e3, restart_s=self._restart_s)
        self._slowed_s = 0.0

    def _plan(self, step: int) -> None:
        assert self._step_s is not None
        age_h = max(0.0, time.time() - psutil.boot_time()) / 3600
        interval = self._cadence.next_save(step_s=self._step_s, cost=self._cost, age_h=age_h)
        self._due_at = (step if self._last_step is None else self._last_step) + interval.steps
        if not self._told or (self._cost is not None and self._told < 2):
            self._told += 1
            self.reasons.append(interval.reason)
            logger.info("nearpeak: %s", interval.reason)
