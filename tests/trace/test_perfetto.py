"""What Perfetto is given: the original with our tracks in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsys_writer import write_export

from nearpeak.errors import DataError
from nearpeak.trace.nsys import read_nsys
from nearpeak.trace.perfetto import Track, overlay, write_timelines

EVENT = {"ph": "X", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2, "name": 'a ["traceEvents"] \\'}


def track(group: str = "nearpeak, rank 0") -> Track:
    return Track(
        group=group,
        name="GPU 0",
        start_ns=np.array([1_700_000_000_000_000_123, 1_700_000_000_000_005_000]),
        duration_ns=np.array([4_877, 7]),
        label=np.array([0, 1]),
        labels=("compute", "idle: input"),
    )


def loaded(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("pad", [0, 65_500, 200_000])
@pytest.mark.parametrize("events", [[], [EVENT], [EVENT] * 3])
def test_the_original_is_kept_and_the_tracks_are_added(tmp_path: Path, events: list[Any], pad: int) -> None:
    original = {"schemaVersion": 1, "x": {"traceEvents": ["]"]}, "pad": " " * pad, "traceEvents": events, "z": 1}
    source, target = tmp_path / "trace.json", tmp_path / "out.json"
    source.write_text(json.dumps(original))
    overlay(source, target, [track(), track("nearpeak, rank 1")])
    found = loaded(target)
    ours = found["traceEvents"][: -len(events)] if events else found["traceEvents"]
    assert {**found, "traceEvents": found["traceEvents"][len(ours) :]} == original
    spans = [event for event in ours if event["ph"] == "X"]
    assert [event["name"] for event in spans] == ["compute", "idle: input"] * 2
    assert len({event["pid"] for event in spans}) == 2
    assert {event["args"]["name"] for event in ours if event["name"] == "process_name"} == {
        "nearpeak, rank 0",
        "nearpeak, rank 1",
    }


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text("[]")
    overlay(source, tmp_path / "out.json", [track()])
    assert '"ts":1700000000000000.123,"dur":4.877' in (tmp_path / "out.json").read_text()


def test_lists_of_old_and_gzip_are_kept_as_they_are(tmp_path: Path) -> None:
    source, target = tmp_path / "trace.json.gz", tmp_path / "out.json.gz"
    source.write_bytes(gzip.compress(json.dumps([EVENT, EVENT]).encode()))
    overlay(source, target, [track()])
    assert loaded(target)[-2:] == [EVENT, EVENT]


def test_what_is_no_trace_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text('{"events": {"traceEvents": [1]}}')
    with pytest.raises(DataError, match="no list of events"):
        overlay(source, tmp_path / "out.json", [track()])
    source.write_bytes(gzip.compress(b'{"traceEvents": [' + b"1," * 100_000)[:-20])
    with pytest.raises(DataError, match="cut"):
        overlay(source, tmp_path / "out.json", [track()])
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_other_formats_are_written_out(tmp_path: Path) -> None:
    timelines = read_nsys(write_export(tmp_path / "two.sqlite"))
    write_timelines(tmp_path / "out.json", timelines, [track()])
    events = loaded(tmp_path / "out.json")["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == sum(map(len, timelines)) + 2
    assert {"gemm_kernel", "compute", "Memcpy HtoD (Pageable -> Device)"} <= {event["name"] for event in spans}
    first = min(event["ts"] for event in spans if event["name"] == "iteration 0")
    assert first == pytest.approx(1_000_000.0)
