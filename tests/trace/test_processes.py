"""A file that several processes were joined into."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nearpeak.diagnose.reduce_traces import reduce_traces
from nearpeak.trace.formats import read_traces
from nearpeak.trace.timeline import Kind

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from traces import Events, kernel, loop, write


def joined(apart: int, device_of: tuple[int, int] = (0, 1)) -> Events:
    """Two loops of 3 and 4 steps, processes 42 and 43; the second's calls are numbered from `apart`."""
    events: Events = []
    for process, (steps, device) in enumerate(zip((3, 4), device_of, strict=True)):
        for event in loop(steps, begin_us=1000.0 + 7 * process):
            on_device = event["cat"] == "kernel"
            event["pid"] = device if on_device else 42 + process
            if event["args"].get("correlation") is not None:
                event["args"]["correlation"] += apart * process
            events.append(event)
    return events


def about(process: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": {"name": name}}


def test_processes_with_streams_of_their_own_are_ranks(tmp_path: Path) -> None:
    timelines = read_traces([write(tmp_path / "joined.json", joined(1000))])
    assert [(line.rank, len(line.steps)) for line in timelines] == [(0, 3), (1, 4)]
    assert [line.busy_devices() for line in timelines] == [(0,), (1,)]
    assert [len(line.rows(Kind.KERNEL)) for line in timelines] == [6, 8]
    facts, _ = reduce_traces(timelines)
    assert [rank.idle_ns["input"] for rank in facts.ranks] == [3 * 30_000, 4 * 30_000]


def test_the_ranks_are_those_of_the_processes_names(tmp_path: Path) -> None:
    names = [about(42, "rank 5: python"), about(43, "rank 2: python")]
    timelines = read_traces([write(tmp_path / "joined.json", [*joined(1000), *names], distributedInfo={"rank": 5})])
    assert [(line.rank, len(line.steps)) for line in timelines] == [(2, 4), (5, 3)]


@pytest.mark.parametrize(("apart", "devices"), [(0, (0, 1)), (1000, (0, 0))])
def test_where_it_is_not_sure_they_stay_together_and_it_is_told(
    tmp_path: Path, apart: int, devices: tuple[int, int]
) -> None:
    """The same numbers of calls in both, or one stream of both."""
    (line,) = read_traces([write(tmp_path / "joined.json", joined(apart, devices))])
    assert any("2 processes" in note for note in line.notes)


def test_exchanges_keep_what_is_told_of_them(tmp_path: Path) -> None:
    events = joined(1000)
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 10,
        "Out msg nelems": 10,
        "dtype": "Float",
        "Group size": 2,
    }
    events.append(kernel("ncclDevKernel_AllReduce", 1250.0, 5, 1021, stream=9, device=1, **args))
    first, second = read_traces([write(tmp_path / "joined.json", events)])
    assert first.collectives is not None and not first.collectives.operation
    assert second.collectives is not None and second.collectives.operation == ("allreduce",)
    row = second.collectives.row[0]
    assert second.kind[row] == Kind.COMMUNICATION and second.collectives.n_bytes.tolist() == [40]
