"""Asked once: after the step. Asked twice: now."""

from __future__ import annotations

import signal
import threading

import pytest

from nearpeak.tasks.text_classification.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_stops(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert not interrupts.asked(0)
        signal.raise_signal(number)
        assert interrupts.asked(1)
        assert interrupts.signal == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) is before


def test_outside_the_main_thread_there_are_no_handlers() -> None:
    answers: list[bool] = []

    def work() -> None:
        with Interrupts() as interrupts:
            answers.append(interrupts.asked(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
