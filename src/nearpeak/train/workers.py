"""How many loader workers a run needs, found while it runs, from what each window took. Pure logic: no torch, no clock.

With n workers a window takes max(compute, fetch / n): Little's law gives ⌈fetch / compute⌉ workers, less if the last of
them gain under 5 %. The first guess comes from a few windows fetched in the training process; then every change is
measured, is kept only if windows really came 5 % faster, and is never tried again unless the figures change by half.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from nearpeak.reason import Reason

__all__ = ["Advice", "WorkerTuner", "available_cores", "little"]

LEAST_GAIN = 0.05
"""A change that saves a smaller share of a window's time is not made, or is taken back."""
MOST_WORKERS = 32
CHANGED = 1.5
"""What was rejected is tried again once fetch ÷ compute has changed by this factor."""


class Advice(NamedTuple):
    """Change the workers to this number."""

    workers: int
    reason: Reason


@dataclass(slots=True)
class _Block:
    """The windows measured under one number of workers since the last decision."""

    fetch_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.wait_ms)

    def figures(self) -> _Figures:
        # Waits come in bursts, so only their mean means anything; a fetch or a step may be an outlier.
        wait = sum(self.wait_ms) / len(self.wait_ms)
        return _Figures(median(self.fetch_ms), median(self.cpu_ms), wait, median(self.compute_ms), min(self.wait_ms))


class _Figures(NamedTuple):
    fetch_ms: float
    cpu_ms: float
    wait_ms: float
    compute_ms: float
    least_wait_ms: float

    @property
    def period_ms(self) -> float:
        return self.wait_ms + self.compute_ms

    def predicted_ms(self, workers: int) -> float:
        """What a window takes by Little's law."""
        return max(self.compute_ms, self.fetch_ms / max(workers, 1))

    @property
    def load(self) -> float:
        """Fetch time in units of compute time."""
        return self.fetch_ms / max(self.compute_ms, 1e-3)

    def waits(self, workers: int) -> bool:
        """Whether the step waits so much that more workers are worth a trial."""
        if workers == 0 or self.fetch_ms / workers > self.compute_ms:
            return self.wait_ms > LEAST_GAIN * self.period_ms
        # These workers should do. What every window waits is its handing over, which no further worker saves; only
        # waits that come and go are for windows that were late.
        return self.wait_ms - self.least_wait_ms > 2 * LEAST_GAIN * self.period_ms


class _Trial(NamedTuple):
    """A change whose gain is not proven yet, and what held before it."""

    workers: int
    period_ms: float
    load: float
    predicted: bool
    """The period was worked out from fetch times before it could be measured; it lacks the handing over."""


def little(fetch_ms: float, compute_ms: float, most: int) -> int:
    """The fewest workers whose predicted window time is within 5 % of what `most` could reach.

    >>> little(fetch_ms=55, compute_ms=10, most=32)
    6
    """
    best = max(compute_ms, fetch_ms / most)
    return min(most, max(1, math.ceil(fetch_ms / (best * (1 + LEAST_GAIN)) - 1e-9)))


class WorkerTuner:
    """Advises the number of workers. Call `observe` after every window; follow the advice with `set_workers`.

    Where that could not be followed (no memory for more processes), the tuner advises nothing any more.
    """

    def __init__(self, workers: int = 0, *, cores: float | None = None, most: int | None = None) -> None:
        self.workers = workers
        """What the tuner believes to be set: its own last advice."""
        self._cores = available_cores() if cores is None else cores
        self._most = MOST_WORKERS if most is None else most
        self._cpu_share = 0.0
        self._trials: list[_Trial] = []
        self._rejected: _Trial | None = None
        self._block = _Block()
        self._to_skip = self._warm_up()

    def observe(
        self, fetch_ms: float, wait_ms: float, compute_ms: float, *, workers: int, fetch_cpu_ms: float | None = None
    ) -> Advice | None:
        """Take in one window; returns advice when the number of workers should change.

        `compute_ms` is the step without the wait. `workers` is how many the generation had that fetched this window:
        windows still draining from an earlier generation count for nothing. `fetch_cpu_ms` tells a fetch that computes
        from one that waits for a disk or network, which may have more workers than there are cores.
        """
        if workers != self.workers:
            return None
        if self._to_skip > 0:
            self._to_skip -= 1
            return None
        self._add(fetch_ms, wait_ms, compute_ms, fetch_ms if fetch_cpu_ms is None else fetch_cpu_ms)
        if len(self._block) == 4 and self._trials:
            return self._judge_early()
        return self._decide() if len(self._block) >= self._block_size() else None

    def _add(self, fetch_ms: float, wait_ms: float, compute_ms: float, cpu_ms: float) -> None:
        self._block.fetch_ms.append(fetch_ms)
        self._block.cpu_ms.append(cpu_ms)
        self._block.wait_ms.append(wait_ms)
        self._block.compute_ms.append(compute_ms)

    def _warm_up(self) -> int:
        """Windows that say nothing: imports and caches in the training process, the first burst of new workers."""
        return max(1, self.workers)

    def _block_size(self) -> int:
        """Whole rounds of all workers: they deliver in bursts. Without a trial there is no hurry."""
        if self.workers == 0:
            return 4
        return 2 * self.workers if self._trials else max(8, 3 * self.workers)

    def _judge_early(self) -> Advice | None:
        """Four windows can show that these workers cannot keep up: then no whole round is needed to go on or back."""
        now = self._block.figures()
        period_ms = now.predicted_ms(self.workers)
        if period_ms <= now.compute_ms * (1 + LEAST_GAIN):
            return None
        if period_ms > (1 - LEAST_GAIN) * self._trials[-1].period_ms:
            return self._take_back(self._trials.pop(), now, period_ms)
        return self._raise(now, period_ms, predicted=True)

    def _decide(self) -> Advice | None:
        now = self._block.figures()
        self._block = _Block()
        while self._trials:
            trial = self._trials.pop()
            period_ms = now.predicted_ms(self.workers) if trial.predicted else now.period_ms
            if period_ms > (1 - LEAST_GAIN) * trial.period_ms:
                return self._take_back(trial, now, period_ms)
        return self._raise(now, now.period_ms, predicted=False) if now.waits(self.workers) else None

    def _raise(self, now: _Figures, period_ms: float, *, predicted: bool) -> Advice | None:
        workers = self._wanted(now)
        if workers <= self.workers:
            return None
        self._trials.append(_Trial(self.workers, period_ms, now.load, predicted))
        because = (
            f"a window takes {now.fetch_ms:.1f} ms to fetch and {now.compute_ms:.1f} ms to compute, and the step waits "
            f"{100 * now.wait_ms / now.period_ms:.0f} % of its time for input with {_count(self.workers)}"
        )
        return self._advise(workers, because, now)

    def _wanted(self, now: _Figures) -> int:
        """Workers that the figures ask for, within the limits; as many as now where a raise did not pay before."""
        self._cpu_share = max(self._cpu_share, min(1.0, now.cpu_ms / max(now.fetch_ms, 1e-3)))
        most = self._limit()
        # One worker alone is often slower than none: what it overlaps it loses again in handing windows over.
        least = self.workers + 1 if self.workers or self._most == 1 else 2
        if most < least or self._raised_in_vain(now):
            return self.workers
        if self.workers:  # a fetch that slows down with every worker would ask for ever more of them
            most = min(most, 2 * self.workers)
        return max(least, little(now.fetch_ms, now.compute_ms, most))

    def _limit(self) -> int:
        """A fetch that computes gets no more workers than there are cores, and on a single core none."""
        if self._cores < 2 and self._cpu_share > 0.5:
            return 0
        return min(self._most, math.floor(self._cores / max(self._cpu_share, 1e-3) + 1e-9))

    def _raised_in_vain(self, now: _Figures) -> bool:
        if self._rejected is None or self._rejected.workers != self.workers:
            return False
        return 1 / CHANGED < now.load / max(self._rejected.load, 1e-6) < CHANGED

    def _take_back(self, trial: _Trial, now: _Figures, period_ms: float) -> Advice:
        self._rejected = trial
        because = (
            f"{_count(self.workers)} did not pay: {period_ms:.1f} ms a window, "
            f"against {trial.period_ms:.1f} ms with {_count(trial.workers)}"
        )
        return self._advise(trial.workers, because, now)

    def _advise(self, workers: int, because: str, now: _Figures) -> Advice:
        self.workers = workers
        self._block = _Block()
        self._to_skip = self._warm_up()
        return Advice(workers, Reason(f"loader.workers={workers}", because, _evidence(now, self._cores)))


def _count(workers: int) -> str:
    return "no worker" if workers == 0 else f"{workers} worker{'s' if workers > 1 else ''}"


def _evidence(now: _Figures, cores: float) -> dict[str, float | int | str | bool]:
    return {
        "fetch_ms": round(now.fetch_ms, 3),
        "fetch_cpu_ms": round(now.cpu_ms, 3),
        "wait_ms": round(now.wait_ms, 3),
        "compute_ms": round(now.compute_ms, 3),
        "cores": cores,
    }


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """CPU cores this process may use: its affinity, and the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = float(len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
    quota = _quota(cgroup)
    return cores if quota is None else min(cores, quota)


def _quota(cgroup: Path) -> float | None:
    """Cores granted by cgroup v2 (`cpu.max`) or v1; None where there is no limit."""
    try:
        if (cgroup / "cpu.max").exists():
            granted, period = (cgroup / "cpu.max").read_text().split()
        else:
            granted, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return None if granted == "max" or int(granted) < 0 else int(granted) / int(period)
    except (OSError, ValueError):
        return None
