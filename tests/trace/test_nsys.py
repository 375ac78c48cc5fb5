"""Exports of Nsight Systems, made here, into timelines."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from nsys_writer import global_pid, write_export

from nearpeak.diagnose.attribution import attribute
from nearpeak.errors import DataError
from nearpeak.trace.kinds import copy_route, is_pageable
from nearpeak.trace.nsys import is_nsys, read_nsys
from nearpeak.trace.timeline import Kind


def test_each_process_is_a_rank_with_its_own_device_and_steps(tmp_path: Path) -> None:
    timelines = read_nsys(write_export(tmp_path / "two.sqlite"))
    assert [timeline.rank for timeline in timelines] == [None, None]
    for rank, timeline in enumerate(timelines):
        assert timeline.busy_devices() == (rank,)
        assert timeline.devices[0].name == "NVIDIA A100-SXM4-40GB"
        assert timeline.devices[0].compute_capability == (8, 0)
        assert timeline.steps.number.tolist() == [0, 1, 2, 3]
        assert np.diff(timeline.steps.start_ns).tolist() == [10_000_000] * 3
        assert timeline.steps.inferred is None


def test_work_calls_and_ranges_have_their_kinds(tmp_path: Path) -> None:
    (timeline,) = read_nsys(write_export(tmp_path / "one.sqlite", processes=1))
    counts = {kind: len(timeline.rows(kind)) for kind in Kind}
    assert (counts[Kind.KERNEL], counts[Kind.COMMUNICATION], counts[Kind.COPY]) == (4, 4, 4)
    assert (counts[Kind.LAUNCH], counts[Kind.SYNC], counts[Kind.INPUT]) == (12, 4, 4)
    kernels = timeline.rows(Kind.KERNEL)
    launches = timeline.rows(Kind.LAUNCH)
    assert set(timeline.correlation[kernels]) < set(timeline.correlation[launches])
    copy = timeline.rows(Kind.COPY)[0]
    assert copy_route(timeline.names[timeline.name[copy]]) == "HtoD"
    assert is_pageable(timeline.names[timeline.name[copy]])
    assert timeline.n_bytes[copy] == 1 << 20


def test_without_ranges_the_working_time_is_one_window_and_it_says_so(tmp_path: Path) -> None:
    (timeline,) = read_nsys(write_export(tmp_path / "bare.sqlite", processes=1, without=("NVTX_EVENTS",)))
    assert len(timeline.steps) == 1
    assert timeline.steps.inferred is not None and "work on a device" in timeline.steps.inferred
    assert any("NVTX_EVENTS" in note for note in timeline.notes)


def test_without_ranges_steps_are_where_the_same_kernels_repeat(tmp_path: Path) -> None:
    path = write_export(tmp_path / "bare.sqlite", processes=1, steps=6, without=("NVTX_EVENTS",), more_kernels=8)
    (timeline,) = read_nsys(path)
    assert (timeline.steps.end_ns - timeline.steps.start_ns).tolist() == [10_000_000] * 5
    assert "repeat" in (timeline.steps.inferred or "")


def test_without_calls_the_table_of_synchronisations_tells_of_waits(tmp_path: Path) -> None:
    path = write_export(tmp_path / "sync.sqlite", processes=1, without=("CUPTI_ACTIVITY_KIND_RUNTIME",))
    with sqlite3.connect(path) as database:
        columns = "start INT, end INT, deviceId INT, globalPid INT, syncType INT"
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION ({columns})")
        for step, kind in enumerate((3, 4, 2)):  # a stream that waits for an event keeps no host waiting
            begin = 1_009_200_000 + 10_000_000 * step
            row = (begin, begin + 100_000, 0, global_pid(500), kind)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (?, ?, ?, ?, ?)", row)
    database.close()
    (timeline,) = read_nsys(path)
    assert len(timeline.rows(Kind.SYNC)) == 2
    assert attribute(timeline).idle["sync"].start.tolist() == [9_200_000, 19_200_000]


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMSET", "TARGET_INFO_GPU"])
def test_missing_tables_are_lived_without(tmp_path: Path, table: str) -> None:
    (timeline,) = read_nsys(write_export(tmp_path / "less.sqlite", processes=1, without=(table,)))
    assert len(timeline.rows(Kind.KERNEL)) == 4


def test_names_without_a_table_of_strings_are_numbered(tmp_path: Path) -> None:
    (timeline,) = read_nsys(write_export(tmp_path / "nameless.sqlite", processes=1, without=("StringIds",)))
    assert {name for name in timeline.names if name.startswith("unnamed")}


def test_exports_of_old_find_the_process_by_the_launch(tmp_path: Path) -> None:
    timelines = read_nsys(write_export(tmp_path / "old.sqlite", old=True, without=("CUPTI_ACTIVITY_KIND_MEMCPY",)))
    assert [len(timeline.rows(Kind.KERNEL)) for timeline in timelines] == [4, 4]


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE cats (name TEXT)")
    database.close()
    assert is_nsys(other)
    with pytest.raises(DataError, match="no table of Nsight Systems"):
        read_nsys(other)
    (tmp_path / "text.sqlite").write_text("no database")
    assert not is_nsys(tmp_path / "text.sqlite")
    with pytest.raises(DataError, match="no SQLite database"):
        read_nsys(tmp_path / "text.sqlite")


def test_an_export_without_device_work_says_how_to_get_one(tmp_path: Path) -> None:
    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
    with pytest.raises(DataError, match="--trace=cuda"):
        read_nsys(write_export(tmp_path / "idle.sqlite", without=tables))


def test_wrong_types_in_columns_are_no_crash(tmp_path: Path) -> None:
    path = write_export(tmp_path / "odd.sqlite", processes=1)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE correlationId = 1")
        database.execute("UPDATE NVTX_EVENTS SET text = x'ff00ff' WHERE rowid = 1")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9e300 WHERE correlationId = 11")
    database.close()
    (timeline,) = read_nsys(path)
    assert len(timeline.rows(Kind.KERNEL)) >= 2
