"""Files are told apart by what is in them, and ranks put in order."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nearpeak.errors import DataError
from nearpeak.trace import formats
from nearpeak.trace.formats import format_of, read_traces, traces_below

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from traces import loop, write, write_text


def test_by_content_not_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.json", loop())
    write(tmp_path / "b.json.gz", loop()).rename(tmp_path / "b")
    (tmp_path / "deep").mkdir()
    write_text(tmp_path / "deep" / "list.json", '[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]')
    write_text(tmp_path / "settings.json", '{"rank": 3}')
    write_text(tmp_path / "notes.txt", "hello")
    write_text(tmp_path / "empty.json", "")
    assert [path.name for path in traces_below(tmp_path)] == ["a.json", "b", "list.json"]
    assert format_of(tmp_path / "settings.json") is None


def test_ranks_are_put_in_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"worker{rank}.json", loop()) for rank in (10, 2, 1)]
    assert [timeline.rank for timeline in read_traces(paths)] == [1, 2, 10]


def test_of_several_recordings_of_a_rank_the_last_is_taken(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{rank}.{at}.json", loop(begin_us=at)) for rank in (0, 1) for at in (9000.0, 5000.0)]
    timelines = read_traces(paths)
    assert [timeline.source for timeline in timelines] == ["rank0.9000.0.json", "rank1.9000.0.json"]
    assert any("recorded 2 times" in note for note in timelines[0].notes)


def test_ranks_that_are_not_given_are_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, loop(begin_us=at)) for name, at in (("x.json", 1000.0), ("y.json", 1001.0))]
    timelines = read_traces(paths)
    assert [timeline.rank for timeline in timelines] == [0, 1]
    assert all(any("its rank is not given" in note for note in timeline.notes) for timeline in timelines)


def test_large_ranks_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"rank{rank}.json", loop()) for rank in (1, 0)]
    alone = read_traces(paths)
    monkeypatch.setattr(formats, "PARALLEL_FROM_BYTES", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    together = read_traces(paths)
    assert [timeline.rank for timeline in together] == [0, 1]
    for one, other in zip(alone, together, strict=True):
        assert one.names == other.names and one.start_ns.tolist() == other.start_ns.tolist()
        assert one.steps.start_ns.tolist() == other.steps.start_ns.tolist()


def test_errors_come_back_from_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / "rank0.json", loop()), write_text(tmp_path / "rank1.json", "hello")]
    monkeypatch.setattr(formats, "PARALLEL_FROM_BYTES", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(DataError, match="no trace in a format"):
        read_traces(paths)


def test_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no trace was given"):
        read_traces([])
