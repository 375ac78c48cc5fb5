"""The tuner against a simulated loader: no process, no clock, thousands of windows a second."""

from __future__ import annotations

import collections
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.train.workers import Advice, WorkerTuner, available_cores, little


@dataclass
class SimulatedLoader:
    """Workers that take turns and prefetch two windows each; old generations drain when their number changes."""

    fetch_ms: float
    compute_ms: float
    cores: float = 8
    cpu_share: float = 1.0
    handover_ms: float = 0.0
    """What a window costs the training process when it comes from a worker."""
    crowding: float = 0.0
    """By how much each further worker slows all of them."""

    def __post_init__(self) -> None:
        self.now_ms = 0.0
        self.workers = 0
        self.flight: collections.deque[tuple[float, float, int]] = collections.deque()
        self.free_at: list[float] = []
        self.turn = 0

    def set_workers(self, workers: int) -> None:
        self.workers = workers
        self.free_at = [self.now_ms] * workers
        for _ in range(2 * workers):
            self._assign()

    def _assign(self) -> None:
        if not self.workers:
            return
        fetch_ms = self.fetch_ms * max(1.0, self.workers * self.cpu_share / self.cores)
        fetch_ms *= 1 + self.crowding * (self.workers - 1)
        worker = self.turn % self.workers
        self.turn += 1
        self.free_at[worker] = max(self.free_at[worker], self.now_ms) + fetch_ms
        self.flight.append((self.free_at[worker], fetch_ms, self.workers))

    def step(self) -> tuple[float, float, float, int]:
        """One window: (fetch_ms, wait_ms, compute_ms, workers)."""
        if self.flight:
            ready, fetch_ms, workers = self.flight.popleft()
            if workers == self.workers:
                self._assign()
            wait_ms = max(0.0, ready - self.now_ms) + self.handover_ms
        else:
            fetch_ms, wait_ms, workers = self.fetch_ms, self.fetch_ms, 0
        self.now_ms += wait_ms + self.compute_ms
        return fetch_ms, wait_ms, self.compute_ms, workers

    def period_ms(self, workers: int, windows: int = 200) -> float:
        """What a window takes in the long run with a fixed number of workers."""
        twin = SimulatedLoader(
            self.fetch_ms, self.compute_ms, self.cores, self.cpu_share, self.handover_ms, self.crowding
        )
        twin.set_workers(workers)
        for _ in range(4 * workers):
            twin.step()
        start = twin.now_ms
        for _ in range(windows):
            twin.step()
        return (twin.now_ms - start) / windows

    def best(self, most: int = 16) -> int:
        """The fewest workers within 5 % of the best that any number reaches."""
        periods = [self.period_ms(workers) for workers in range(most + 1)]
        return next(workers for workers, period in enumerate(periods) if period <= 1.05 * min(periods))


def tune(loader: SimulatedLoader, windows: int = 400, most: int | None = None) -> list[tuple[int, Advice]]:
    """Follow the tuner; returns each piece of advice with the window at which it came."""
    tuner = WorkerTuner(cores=loader.cores, most=most)
    advices = []
    for window in range(windows):
        fetch_ms, wait_ms, compute_ms, workers = loader.step()
        advice = tuner.observe(
            fetch_ms, wait_ms, compute_ms, workers=workers, fetch_cpu_ms=loader.fetch_ms * loader.cpu_share
        )
        if advice is not None:
            loader.set_workers(advice.workers)
            advices.append((window + 1, advice))
    return advices


@pytest.mark.parametrize(("fetch_ms", "crowding"), [(55, 0.0), (52, 0.03), (46, 0.06)])
def test_finds_six_within_forty_windows(fetch_ms: float, crowding: float) -> None:
    loader = SimulatedLoader(fetch_ms, compute_ms=10, cores=8, crowding=crowding)
    assert loader.best() == 6
    advices = tune(loader)
    assert loader.workers == 6
    assert advices[-1][0] <= 40


def test_a_fetch_that_waits_may_have_more_workers_than_cores() -> None:
    loader = SimulatedLoader(fetch_ms=55, compute_ms=10, cores=2, cpu_share=0.05)
    tune(loader)
    assert loader.workers == 6


def test_a_fetch_that_computes_gets_no_more_workers_than_cores() -> None:
    loader = SimulatedLoader(fetch_ms=55, compute_ms=10, cores=2)
    tune(loader)
    assert loader.workers == 2


def test_no_workers_where_the_step_does_not_wait() -> None:
    assert tune(SimulatedLoader(fetch_ms=0.4, compute_ms=10)) == []


def test_no_workers_on_one_core() -> None:
    assert tune(SimulatedLoader(fetch_ms=20, compute_ms=10, cores=1)) == []


def test_returns_to_none_for_good_when_workers_do_not_pay() -> None:
    loader = SimulatedLoader(fetch_ms=1, compute_ms=10, handover_ms=2)
    advices = tune(loader, windows=2000)
    assert [advice.workers for _, advice in advices] == [2, 0]
    assert "did not pay" in advices[-1][1].reason.because


def test_one_worker_where_more_would_lose_the_order() -> None:
    loader = SimulatedLoader(fetch_ms=20, compute_ms=10)
    assert [advice.workers for _, advice in tune(loader, most=1)] == [1]


def test_raises_when_fetching_becomes_slower_during_the_run() -> None:
    loader = SimulatedLoader(fetch_ms=15, compute_ms=10)
    tuner = WorkerTuner(cores=8)
    for window in range(400):
        if window == 200:
            loader.fetch_ms = 45
        fetch_ms, wait_ms, compute_ms, workers = loader.step()
        advice = tuner.observe(fetch_ms, wait_ms, compute_ms, workers=workers, fetch_cpu_ms=fetch_ms)
        if advice:
            loader.set_workers(advice.workers)
        assert window != 199 or loader.workers == 2
    assert loader.workers == 5


def test_tries_again_once_the_figures_have_changed() -> None:
    loader = SimulatedLoader(fetch_ms=1, compute_ms=10, handover_ms=2)
    tuner = WorkerTuner(cores=8)
    seen = []
    for window in range(600):
        if window == 300:
            loader.fetch_ms = 30
        fetch_ms, wait_ms, compute_ms, workers = loader.step()
        advice = tuner.observe(fetch_ms, wait_ms, compute_ms, workers=workers, fetch_cpu_ms=fetch_ms)
        if advice:
            loader.set_workers(advice.workers)
            seen.append(advice.workers)
    assert seen[:2] == [2, 0]
    assert seen[-1] >= 3


def test_a_disk_that_is_the_bottleneck_does_not_call_for_ever_more_workers() -> None:
    loader = SimulatedLoader(fetch_ms=50, compute_ms=10, cores=2, cpu_share=0.05, crowding=1.0)
    advices = tune(loader, windows=3000)
    assert len(advices) <= 4
    assert loader.workers <= 5


def test_windows_of_an_earlier_generation_count_for_nothing() -> None:
    tuner = WorkerTuner(workers=2, cores=8)
    assert all(tuner.observe(100, 100, 1, workers=0) is None for _ in range(50))


@given(
    load=st.floats(0.02, 20),
    cores=st.integers(1, 16),
    cpu_share=st.floats(0.02, 1),
    handover=st.floats(0, 0.3),
    crowding=st.floats(0, 0.1),
)
def test_ends_near_the_best_and_stays_there(
    load: float, cores: int, cpu_share: float, handover: float, crowding: float
) -> None:
    loader = SimulatedLoader(10 * load, 10, cores, cpu_share, 10 * handover, crowding)
    advices = tune(loader, windows=600)
    assert len(advices) <= 6
    tried = max((advice.workers for _, advice in advices), default=0)
    assert not advices or advices[-1][0] <= 20 + 16 * tried  # a round is as long as there are workers
    assert loader.period_ms(loader.workers) <= 1.06 * loader.period_ms(0)


@given(fetch=st.floats(0.1, 1000), compute=st.floats(0.1, 1000), most=st.integers(1, 64))
def test_little_stops_where_the_rest_gains_less_than_five_percent(fetch: float, compute: float, most: int) -> None:
    best = max(compute, fetch / most)
    chosen = little(fetch, compute, most)
    assert 1 <= chosen <= most
    assert max(compute, fetch / chosen) <= 1.051 * best
    assert chosen == 1 or max(compute, fetch / (chosen - 1)) >= 1.049 * best


def test_cores_respect_a_container_quota(tmp_path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(tmp_path) >= 1
    assert available_cores(tmp_path / "missing") >= 1


def test_a_version_1_quota_counts_too(tmp_path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("25000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert available_cores(tmp_path) == 0.25
