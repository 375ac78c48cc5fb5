"""Run by test_preempt: signals that end processes, each in a fork of this one; prints how they ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

from nearpeak.train.preempt import Notices, exit_preempted, ignore_stop_signals

LATER_S = float(sys.argv[1]) + 0.2


def second_sigterm() -> None:
    with Notices(["signals"]) as notices:
        os.kill(os.getpid(), signal.SIGTERM)
        assert notices.pending is not None
        time.sleep(LATER_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def sigint_after_sigterm() -> None:
    with Notices(["signals"]):
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            os._exit(111)


def forked_child(number: int, prepare: Callable[[], None] = lambda: None) -> Callable[[], None]:
    def scenario() -> None:
        with Notices(["signals"]) as notices:
            child = os.fork()
            if child == 0:
                prepare()
                time.sleep(0.5)
                os._exit(0)
            time.sleep(0.2)
            os.kill(child, number)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert notices.pending is None, "a signal to a helper is no notice for the run"
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    return scenario


def helper_asked_again() -> None:
    child = os.fork()
    if child == 0:
        ignore_stop_signals()
        time.sleep(30)
        os._exit(0)
    time.sleep(0.2)
    os.kill(child, signal.SIGTERM)
    time.sleep(LATER_S)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "the first time is not meant for it"
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os._exit(0)


def after_closing() -> None:
    with Notices(["signals"]):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


def leaving() -> None:
    with Notices(["signals"]) as notices:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert notices.pending is not None
    exit_preempted(notices.pending)


SCENARIOS: dict[str, Callable[[], None]] = {
    "second SIGTERM": second_sigterm,
    "SIGINT after SIGTERM": sigint_after_sigterm,
    "forked child, SIGTERM": forked_child(signal.SIGTERM),
    "forked child, SIGUSR1": forked_child(signal.SIGUSR1),
    "helper that ignores, SIGTERM": forked_child(signal.SIGTERM, ignore_stop_signals),
    "helper that ignores, asked again": helper_asked_again,
    "after closing": after_closing,
    "leaving": leaving,
}


def run(scenario: Callable[[], None]) -> int:
    """The scenario's exit code in a process of its own."""
    process = os.fork()
    if process:
        return process
    try:
        scenario()
    except SystemExit as left:
        os._exit(left.code if isinstance(left.code, int) else 99)
    finally:
        sys.stderr.flush()
    os._exit(98)


if __name__ == "__main__":
    started = {name: run(scenario) for name, scenario in SCENARIOS.items()}
    ended = {name: os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for name, process in started.items()}
    json.dump({name: "KeyboardInterrupt" if code == 111 else code for name, code in ended.items()}, sys.stdout)
