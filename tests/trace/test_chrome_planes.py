"""TensorFlow's traces in Chrome's format, whose events tell by their lanes alone what they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nearpeak.diagnose.diagnosis import conclude
from nearpeak.diagnose.reduce_traces import reduce_traces
from nearpeak.trace.formats import read_traces
from nearpeak.trace.kinds import copy_route
from nearpeak.trace.timeline import Kind

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from traces import write


def named(process: int, name: str, thread: int | None = None) -> dict[str, Any]:
    what = "process_name" if thread is None else "thread_name"
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def event(process: int, thread: int, name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "pid": process, "tid": thread, "ts": ts, "dur": dur, "name": name, "args": {"long_name": name}}


LANES = [
    named(1, "/device:GPU:0"), named(1, "Steps", 1), named(1, "TensorFlow Ops", 2), named(1, "Stream #14(Compute)", 3),
    named(1, "Stream #15(MemcpyH2D)", 4), named(701, "/host:CPU"), named(701, "python", 9), named(701, "tf_Compute", 8),
]  # fmt: skip


def steps(count: int, *, with_line: bool) -> list[dict[str, Any]]:
    """100 µs: 60 of input, a copy of 5, a kernel of 20, which the line above repeats."""
    events = []
    for number in range(count):
        t = 1000.0 + 100 * number
        events += [event(1, 1, str(number + 7), t, 100)] if with_line else []
        events += [
            event(701, 9, "IteratorGetNext", t + 1, 60),
            event(701, 8, "cuLaunchKernel", t + 64, 2),
            event(1, 4, "MemcpyH2D", t + 65, 5),
            event(1, 3, "volta_sgemm_128x64_nn", t + 70, 20),
            event(1, 2, "MatMul", t + 70, 20),
        ]
    return events


def test_devices_kinds_and_steps_are_told_by_names(tmp_path: Path) -> None:
    (line,) = read_traces([write(tmp_path / "host.trace.json.gz", [*LANES, *steps(4, with_line=True)])])
    assert line.steps.number.tolist() == [7, 8, 9, 10] and line.steps.inferred is None
    assert line.busy_devices() == (0,)
    counts = {kind: len(line.rows(kind)) for kind in (Kind.KERNEL, Kind.COPY, Kind.INPUT, Kind.LAUNCH)}
    assert set(counts.values()) == {4}
    copy = line.rows(Kind.COPY)[0]
    assert copy_route(line.names[line.name[copy]]) == "HtoD"
    facts, _ = reduce_traces([line])
    assert facts.breakdown is not None
    shares = {cause: facts.breakdown.share(cause) for cause in ("compute", "copy", "input")}
    assert shares == pytest.approx({"compute": 0.2, "copy": 0.05, "input": 0.6})
    assert conclude(facts).findings[0].kind == "input"


def test_without_a_line_of_steps_the_whole_counts_as_one(tmp_path: Path) -> None:
    (line,) = read_traces([write(tmp_path / "host.trace.json.gz", [*LANES, *steps(4, with_line=False)])])
    assert len(line.steps) == 1 and "whole trace" in (line.steps.inferred or "")


def test_a_host_alone(tmp_path: Path) -> None:
    events = [*LANES[5:], event(701, 9, "MatMul:MatMul", 1, 5), event(701, 9, "$main.py:3 train", 0, 9)]
    (line,) = read_traces([write(tmp_path / "host.trace.json.gz", events)])
    assert (len(line.rows(Kind.OP)), len(line.rows(Kind.PYTHON)), line.busy_devices()) == (1, 1, ())
