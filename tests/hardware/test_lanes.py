from __future__ import annotations

import threading
import time

from nearpeak.hardware.live.lanes import Lane


def test_answers_come_in_one_round() -> None:
    lane: Lane[int] = Lane("test", 5.0)
    assert lane.ask({"a": lambda: 1, "b": lambda: 2}) == {"a": 1, "b": 2}
    assert lane.ask({}) == {}
    assert lane.close()


def test_a_call_that_hangs_holds_nobody_else_up_and_may_come_back() -> None:
    lane: Lane[str] = Lane("test", 0.05)
    release = threading.Event()
    calls = []

    def hang() -> str:
        calls.append("hang")
        release.wait(10)
        return "old"

    tasks = {"a": lambda: "a", "stuck": hang, "b": lambda: "b"}
    begun = time.monotonic()
    assert lane.ask(tasks) == {"a": "a", "b": "b"}
    assert time.monotonic() - begun < 2
    held_s = lane.stuck_s("stuck")
    assert held_s is not None and held_s >= 0.05
    assert lane.stuck_s("a") is None and lane.has_stuck
    assert lane.ask(tasks) == {"a": "a", "b": "b"} and calls == ["hang"]  # it is not asked again
    release.set()
    deadline = time.monotonic() + 5
    while lane.stuck_s("stuck") is not None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert lane.ask({"stuck": lambda: "new"}) == {"stuck": "new"}
    assert lane.close()


def test_two_that_hang_cost_two_patiences_once() -> None:
    lane: Lane[str] = Lane("test", 0.05)
    release = threading.Event()
    tasks = {name: (lambda: str(release.wait(10))) for name in ("x", "y")} | {"z": lambda: "z"}
    assert lane.ask(tasks) == {"z": "z"}
    begun = time.monotonic()
    assert lane.ask(tasks) == {"z": "z"}
    assert time.monotonic() - begun < 0.05
    assert not lane.close()
    release.set()


def test_a_lane_that_is_not_waited_for() -> None:
    lane: Lane[int] = Lane("test", 5.0)
    go = threading.Event()
    lane.start({"a": lambda: int(go.wait(10))})
    assert not lane.is_free and lane.collect() == {}
    lane.start({"b": lambda: 2})  # not begun: the first is not done
    go.set()
    deadline = time.monotonic() + 5
    answers: dict[str, int] = {}
    while not answers and time.monotonic() < deadline:
        answers = lane.collect()
    assert answers == {"a": 1} and lane.is_free
    assert lane.close()
