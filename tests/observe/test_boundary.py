"""What breaks inside the probe stays there; what the user's own code raises does not."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from nearpeak.observe.boundary import Boundary


class TimeIsUpError(Exception):
    """A user's own."""


@pytest.fixture
def boundary() -> Boundary:
    made = Boundary()
    made.active = True
    return made


@pytest.fixture
def _handler() -> Iterator[None]:
    def time_is_up(number: int, frame: object) -> None:
        raise TimeIsUpError

    before = signal.signal(signal.SIGUSR2, time_is_up)
    yield
    signal.signal(signal.SIGUSR2, before)


def test_a_fault_of_ours_stops_the_probe_and_is_remembered(boundary: Boundary) -> None:
    assert boundary.guard(lambda: 1 / 0)() is None
    assert not boundary.active
    assert boundary.fault is not None and boundary.fault.startswith("ZeroDivisionError") and __file__ in boundary.fault
    assert boundary.guard(lambda: 1)() is None


@pytest.mark.usefixtures("_handler")
def test_what_the_users_signal_handler_raises_reaches_the_user(boundary: Boundary) -> None:
    with pytest.raises(TimeIsUpError):
        boundary.guard(lambda: signal.raise_signal(signal.SIGUSR2))()
    assert boundary.active and boundary.fault is None
