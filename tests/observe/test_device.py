"""The device's own times of a step, with events that the test lets happen; and on a real device where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nearpeak.observe.device import MOST_HELD, DeviceClock
from nearpeak.observe.phases import NAMES
from nearpeak.observe.steps import BACKWARD_BEGINS, BACKWARD_ENDS, FORWARD_BEGINS, UPDATE_BEGINS, UPDATE_ENDS
from nearpeak.observe.tally import Tally, to_row


class FakeCuda:
    """A stream whose events happen `lag` milliseconds after they are recorded."""

    def __init__(self, lag: float = 0.0) -> None:
        self.time, self.lag = 0.0, lag
        self.busy_until = 0.0
        self.capturing = False
        self.made = 0
        cuda = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                cuda.made += 1

            def record(self) -> None:
                self.at = max(cuda.time, cuda.busy_until)

            def query(self) -> bool:
                return self.at + cuda.lag <= cuda.time

            def elapsed_time(self, other: Any) -> float:
                return other.at - self.at

        self.Event = Event

    def current_stream(self) -> Any:
        return self

    def query(self) -> bool:
        return self.busy_until <= self.time

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def step(clock: DeviceClock, cuda: FakeCuda) -> list[Tally]:
    """4 ms before it, then forward 1, backward 2, update 3 on an idle device."""
    cuda.time += 4
    for boundary, spent in ((FORWARD_BEGINS, 1), (BACKWARD_BEGINS, 2), (BACKWARD_ENDS, 0), (UPDATE_BEGINS, 3)):
        clock.mark(boundary)
        cuda.time += spent
    clock.mark(UPDATE_ENDS)
    return clock.close(Tally())


def test_times_between_events() -> None:
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    (first,), (second,) = step(clock, cuda), step(clock, cuda)
    assert first.device_ms == {"forward": 1, "backward": 2, "optimizer": 3}
    assert second.device_ms == {"forward": 1, "backward": 2, "optimizer": 3, "gap": 4}
    second.spent = [0] * len(NAMES)
    row = to_row(second, 0, read_bytes=None, worker_cpu_ms=None)
    assert (row.device_forward_ms, row.device_gap_ms, row.starved_share) == (1, 4, 1.0)


def test_a_busy_device_is_not_starved() -> None:
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    cuda.busy_until = 1000.0
    (tally,) = [*step(clock, cuda), *clock.rest()]
    assert tally.starved == (0, 5)


def test_steps_wait_for_their_events_and_never_for_the_device() -> None:
    cuda = FakeCuda(lag=25.0)
    clock = DeviceClock(cuda)
    ready = [len(step(clock, cuda)) for _ in range(6)]
    assert ready == [0, 0, 0, 1, 1, 1]  # a step takes 10 ms: the fourth ends 30 ms after the first
    assert [tally.device_ms for tally in clock.rest()] == [None] * 3
    assert cuda.made < 25  # of thirty: events are used again


def test_a_device_that_hangs_costs_times_not_memory() -> None:
    cuda = FakeCuda(lag=1e9)
    clock = DeviceClock(cuda)
    given = [tally for _ in range(100) for tally in step(clock, cuda)]
    assert len(given) == 100 - MOST_HELD
    assert not any(tally.device_ms for tally in given)


def test_nothing_is_recorded_into_a_graph() -> None:
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    cuda.capturing = True
    (tally,) = step(clock, cuda)
    assert (tally.device_ms, tally.starved, cuda.made) == (None, None, 0)


def test_micro_batches_add_up() -> None:
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    for _ in range(3):
        for boundary, spent in ((FORWARD_BEGINS, 1), (BACKWARD_BEGINS, 2), (BACKWARD_ENDS, 5)):
            clock.mark(boundary)
            cuda.time += spent
    clock.mark(UPDATE_BEGINS)
    clock.mark(UPDATE_ENDS)
    (tally,) = clock.close(Tally())
    assert tally.device_ms == {"forward": 3, "backward": 6, "optimizer": 0}


@pytest.mark.gpu
def test_on_a_real_device(tmp_path: Path) -> None:
    from watched import run_script

    from nearpeak.recording import Recording

    text = """
    model, optimizer, data = make(1024)
    model.cuda()
    for _ in range(3):
        for values, kinds in DataLoader(data, batch_size=16):
            step(model, optimizer, values.cuda(), kinds.pin_memory().cuda(non_blocking=True)).item()
    """
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    (process,) = Recording(tmp_path / "run").processes
    assert process.fault is None
    steps = Recording(tmp_path / "run").steps()
    assert len(steps) == 48
    for each in steps[5:-1]:
        assert each.device_forward_ms and each.device_backward_ms and each.device_optimizer_ms
        assert each.device_gap_ms is not None and each.starved_share is not None
        assert (each.copies, each.pageable_bytes, each.copied_bytes) == (2, 16 * 16 * 4, 16 * 16 * 4 + 16 * 8)
        assert each.syncs == 1
    assert any(each.allocated_bytes and each.reserved_bytes and each.peak_bytes for each in steps)
