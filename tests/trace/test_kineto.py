"""Every generation of the format, and what is left of broken files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from nearpeak.errors import DataError
from nearpeak.trace import kineto
from nearpeak.trace.kineto import is_kineto, read_kineto
from nearpeak.trace.kineto_events import EventLists
from nearpeak.trace.pieces import Pieces
from nearpeak.trace.timeline import Kind, Timeline

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from traces import kernel, launch, loop, span, write, write_text


def kinds(timeline: Timeline) -> dict[str, int]:
    return {Kind(kind).name: int(np.count_nonzero(timeline.kind == kind)) for kind in np.unique(timeline.kind)}


EXPECTED = {"KERNEL": 6, "LAUNCH": 6, "OP": 3, "SPAN": 3, "INPUT": 3}


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "gzipped-all-the-same.json"])
def test_todays_form(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.json.gz", loop()) if "gz" in name else write(tmp_path / name, loop())
    timeline = read_kineto(path.rename(tmp_path / name))
    assert kinds(timeline) == EXPECTED
    assert timeline.steps.number.tolist() == [0, 1, 2] and timeline.steps.inferred is None
    assert timeline.start_ns[0] == 0 and timeline.origin_ns == 1_000_000
    assert timeline.names[timeline.name[timeline.rows(Kind.KERNEL)[0]]] == "volta_sgemm_128x64_nn"
    assert timeline.busy_devices() == (0,) and timeline.notes == ()
    first = timeline.rows(Kind.KERNEL)[0]
    assert (timeline.start_ns[first], timeline.duration_ns[first], timeline.correlation[first]) == (40_000, 20_000, 1)


def test_the_bare_list_of_2021(tmp_path: Path) -> None:
    old = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator", "user_annotation": "Operator"}
    events = [{**event, "cat": old[event["cat"]], "tid": f"stream {event['tid']}"} for event in loop()]
    timeline = read_kineto(write_text(tmp_path / "t.json", "\n " + json.dumps(events, indent=1)))
    assert {**kinds(timeline), "SPAN": 3, "OP": 3} == EXPECTED
    assert len(timeline.steps) == 3


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("chunk_bytes", [300, 700, 5000])
def test_cuts_fall_between_events(tmp_path: Path, indent: int | None, chunk_bytes: int) -> None:
    events = [
        *loop(40),
        span("cpu_op", "looks like }, { an end", 1.0, 1.0, Shapes=[{"a": 1}, {"b": 2}]),
        span("cpu_op", 'quote \\" and }, {"ph": "X"}', 2.0, 1.0, Shapes=[{"a": 1}, {"b": 2}]),
    ] * 3
    text = json.dumps(
        {"deviceProperties": [{"id": 0}, {"id": 1}], "traceEvents": events, "traceName": "x"}, indent=indent
    )
    lists = EventLists(write_text(tmp_path / "t.json.gz", text), chunk_bytes)
    lists._pieces.__class__ = Drops
    read = [event for chunk in lists for event in chunk]
    assert [event.name for event in read] == [event["name"] for event in events]
    assert lists.notes == [] and lists.document.trace_name == "x" and len(lists.document.device_properties) == 2


class Drops(Pieces):
    """A stream that comes in drops."""

    def __iter__(self):
        for piece in super().__iter__():
            yield from (piece[at : at + 97] for at in range(0, len(piece), 97))


def test_a_cut_gzip_gives_what_came_before(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json.gz", loop(500))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    timeline = read_kineto(path)
    assert 100 < len(timeline.steps) < 500
    assert any("cut off" in note for note in timeline.notes) and any("not whole" in note for note in timeline.notes)


def test_truncated_json(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": loop(20)})
    timeline = read_kineto(write_text(tmp_path / "t.json", text[: len(text) * 3 // 4]))
    assert len(timeline.steps) >= 14 and "1 events could not be read and are missing" in timeline.notes


def test_known_faults_of_writers_are_mended(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": loop(3)})
    text = text.replace('"correlation": 1}', '"correlation": 1, "bandwidth": inf, "path": "C:\\Users"}')
    timeline = read_kineto(write_text(tmp_path / "t.json", text))
    assert kinds(timeline) == EXPECTED
    assert not any("could not be read" in note for note in timeline.notes)


def test_strange_values(tmp_path: Path) -> None:
    strange = [
        kernel("k", 1150.0, -5.0, 2**70),
        kernel("k", float(10**30), 5.0, 90),
        {**kernel("k", 1160.0, 1.0, 91), "dur": None},
        {**kernel("k", 1170.0, 1.0, 92), "ts": "1170"},
        {**kernel("k", 1170.0, 1.0, 92), "ts": "soon"},
        {"ph": "X"},
        {"no": "event"},
        span("kernel", "k", 1180.0, 1.0, "stream 9", "GPU 3", correlation="none"),
    ]
    timeline = read_kineto(write(tmp_path / "t.json", [*loop(), *strange], distributedInfo={"rank": "x"}))
    assert kinds(timeline)["KERNEL"] == EXPECTED["KERNEL"] + 4
    assert timeline.busy_devices() == (0, 3) and timeline.rank is None
    assert timeline.duration_ns.min() == 0 and timeline.correlation.min() == -1
    assert sum("events" in note for note in timeline.notes) == 3


@pytest.mark.parametrize(
    "content", ["", "hello", "[]", "{}", '{"traceEvents": []}', '{"a": [{"b": 1}, {"c": 2}]}', "\x00\x01", "[" * 5000]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="no event|no list of trace events"):
        read_kineto(write_text(tmp_path / "t.json", content))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_kineto(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("name", "rank", "world"),
    [("rank3of8.json", 3, 8), ("worker12_step_3.170.pt.trace.json", 12, None), ("trace.json", None, None)],
)
def test_rank_from_the_name(tmp_path: Path, name: str, rank: int | None, world: int | None) -> None:
    timeline = read_kineto(write(tmp_path / name, loop()))
    assert (timeline.rank, timeline.world_size) == (rank, world)
    assert any("file's name" in note for note in timeline.notes) is (rank is not None)


def test_rank_from_the_trace_comes_first(tmp_path: Path) -> None:
    info = {"backend": "nccl", "rank": 1, "world_size": 2}
    timeline = read_kineto(write(tmp_path / "rank7.json", loop(), distributedInfo=info))
    assert (timeline.rank, timeline.world_size, timeline.notes) == (1, 2, ())


def test_steps_from_updates_and_without(tmp_path: Path) -> None:
    plain = [event for event in loop(5) if not event["name"].startswith("ProfilerStep")]
    whole = read_kineto(write(tmp_path / "t.json", plain))
    assert len(whole.steps) == 1 and "whole trace" in (whole.steps.inferred or "")
    updates = [span("user_annotation", "Optimizer.step#SGD.step", 1090.0 + 100 * n, 5.0, 42) for n in range(5)]
    timeline = read_kineto(write(tmp_path / "t.json", plain + updates))
    assert (timeline.steps.end_ns - timeline.steps.start_ns).tolist() == [100_000] * 4


EXCHANGE = {
    "Collective name": "allreduce",
    "In msg nelems": 10,
    "Out msg nelems": 10,
    "dtype": "BFloat16",
    "Group size": 4,
}


def test_what_stands_beside_the_events(tmp_path: Path) -> None:
    events = [
        *loop(1),
        {"ph": "i", "name": "[memory]", "ts": 1050, "args": {"Total Allocated": 7, "Device Type": 1}},
        {"ph": "i", "name": "[memory]", "ts": 1050, "args": {"Total Allocated": 7, "Device Type": 0}},
        {"ph": "M", "name": "thread_name", "pid": 42, "tid": 42, "args": {"name": "main"}},
        kernel("ncclDevKernel_AllReduce()", 1060, 5, 7, **EXCHANGE),
        span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1070, 2, 7, 0, bytes=64, correlation=3),
        launch(1068, 1, 3, "cudaMemcpyAsync"),
    ]
    properties = [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 80, "computeMajor": 9, "computeMinor": 0}, "odd"]
    timeline = read_kineto(write(tmp_path / "t.json", events, deviceProperties=properties))
    assert timeline.memory is not None and timeline.memory.allocated_bytes.tolist() == [7]
    assert timeline.collectives is not None and timeline.collectives.n_bytes.tolist() == [20]
    assert timeline.kind[timeline.collectives.row[0]] == Kind.COMMUNICATION
    assert timeline.devices[0].compute_capability == (9, 0)
    assert "main" in {lane.thread for lane in timeline.lanes}
    assert timeline.n_bytes[timeline.rows(Kind.COPY)].tolist() == [64]


def test_sniffing() -> None:
    assert is_kineto(b'\n{"schemaVersion": 1') and is_kineto(b'[\n {"ph"') and is_kineto(b"[]")
    assert not is_kineto(b"SQLite format 3") and not is_kineto(b"timestamp, name") and not is_kineto(b"[1, 2]")


def test_readings_of_the_allocator_are_gathered_over_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "MOST_READINGS", 3)
    reading = {"ph": "i", "name": "[memory]", "args": {"Total Reserved": 9, "Device Type": 1, "Device Id": 2}}
    events = [
        {**reading, "ts": 1100 - number, "args": {**reading["args"], "Total Allocated": number}} for number in range(20)
    ]
    memory = read_kineto(write(tmp_path / "t.json", [*events[:7], *loop(400), *events[7:]])).memory
    assert memory is not None and memory.allocated_bytes.tolist() == list(range(19, -1, -1))
    assert set(memory.device.tolist()) == {2} and set(memory.reserved_bytes.tolist()) == {9}
