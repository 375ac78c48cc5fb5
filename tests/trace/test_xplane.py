"""XPlane files, made here, into timelines."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from xplane_writer import Event, PlaneWriter, space, training_space

from nearpeak.errors import DataError
from nearpeak.trace.kinds import copy_route, is_pageable
from nearpeak.trace.timeline import Kind
from nearpeak.trace.xplane import read_xplane


def written(tmp_path: Path, content: bytes, name: str = "worker.xplane.pb") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_a_training_loop_on_a_gpu(tmp_path: Path) -> None:
    timeline = read_xplane(written(tmp_path, training_space()))
    assert timeline.steps.number.tolist() == [0, 1, 2, 3]
    assert timeline.steps.inferred is None
    assert np.diff(timeline.steps.start_ns).tolist() == [10_000_000] * 3
    assert timeline.steps.end_ns[:3].tolist() == timeline.steps.start_ns[1:].tolist()
    kernels = timeline.rows(Kind.KERNEL, device=0)
    assert [timeline.names[each] for each in timeline.name[kernels]] == ["gemm"] * 4  # and not XLA's line on top
    assert timeline.duration_ns[kernels].tolist() == [5_000_000] * 4
    assert len(timeline.rows(Kind.INPUT)) == 4
    launches = timeline.rows(Kind.LAUNCH)
    assert set(timeline.correlation[kernels]) < set(timeline.correlation[launches])
    assert timeline.devices[0].compute_capability == (9, 0)
    assert timeline.origin_ns == 1_700_000_000_000_000_000


def test_copies_tell_their_route_memory_and_size(tmp_path: Path) -> None:
    timeline = read_xplane(written(tmp_path, training_space()))
    copies = timeline.rows(Kind.COPY)
    name = timeline.names[timeline.name[copies[0]]]
    assert copy_route(name) == "HtoD"
    assert is_pageable(name)
    assert timeline.n_bytes[copies].tolist() == [4096] * 4


def test_a_gzipped_file_reads_the_same(tmp_path: Path) -> None:
    plain = read_xplane(written(tmp_path, training_space()))
    packed = read_xplane(written(tmp_path, gzip.compress(training_space()), "worker.xplane.pb.gz"))
    assert np.array_equal(plain.start_ns, packed.start_ns)
    assert plain.names == packed.names


def test_a_tpu_has_its_own_steps_and_waits_for_its_infeed(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:TPU:0")
    plane.lines["Steps"] = [Event(str(n), plane.begin_ns + n * 1000, 1000) for n in (3, 4)]
    plane.lines["XLA Ops"] = [
        Event("while.1", plane.begin_ns, 1000),
        Event("infeed.2", plane.begin_ns, 300),
        Event("fusion.7", plane.begin_ns + 300, 500),
        Event("all-reduce.1", plane.begin_ns + 800, 200),
    ]
    timeline = read_xplane(written(tmp_path, space(plane)))
    assert timeline.steps.number.tolist() == [3, 4]
    found = {timeline.names[timeline.name[row]]: Kind(timeline.kind[row]) for row in range(len(timeline))}
    assert found == {
        "while.1": Kind.DEVICE_SPAN,
        "infeed.2": Kind.INPUT,
        "fusion.7": Kind.KERNEL,
        "all-reduce.1": Kind.COMMUNICATION,
    }
    assert timeline.lanes[timeline.lane[timeline.rows(Kind.INPUT)[0]]].device is None


def test_without_step_numbers_calls_from_python_are_steps_and_it_says_so(tmp_path: Path) -> None:
    host = PlaneWriter("/host:CPU")
    host.lines["python"] = [Event("FunctionRun", host.begin_ns + n * 1000, 400, {"_r": 1}) for n in range(5)]
    host.lines["tf_data"] = [Event("FunctionRun", host.begin_ns + n * 100, 50, {"_r": 1}) for n in range(50)]
    timeline = read_xplane(written(tmp_path, space(host)))
    assert len(timeline.steps) == 5
    assert timeline.steps.inferred is not None and "step number" in timeline.steps.inferred
    assert any("no device's plane" in note for note in timeline.notes)


def test_a_cut_file_keeps_its_whole_planes_and_names_the_cut(tmp_path: Path) -> None:
    content = training_space()
    timeline = read_xplane(written(tmp_path, content[: len(content) * 3 // 4]))
    assert len(timeline)
    assert any("cut" in note for note in timeline.notes)


def test_what_is_no_xplane_is_refused_with_the_path(tmp_path: Path) -> None:
    for content in (b"", b"hello, this is no trace at all", b"{}"):
        with pytest.raises(DataError, match=r"worker\.xplane\.pb: is no XPlane"):
            read_xplane(written(tmp_path, content))


def test_impossible_times_are_left_out_and_counted(tmp_path: Path) -> None:
    host = PlaneWriter("/host:CPU")
    host.lines["python"] = [Event("work", host.begin_ns + n, 10) for n in range(5)]
    host.lines["python"] += [Event("far", host.begin_ns, 2**62 // 1000), Event("back", host.begin_ns, -5)]
    timeline = read_xplane(written(tmp_path, space(host)))
    assert len(timeline) == 6  # an event of 53 days is long, not impossible
    assert any("impossible times" in note for note in timeline.notes)


def test_without_any_step_the_time_in_which_devices_worked_is_one(tmp_path: Path) -> None:
    host, device = PlaneWriter("/host:CPU"), PlaneWriter("/device:GPU:0")
    host.lines["main"] = [Event("setting up", host.begin_ns, 5_000_000)]
    device.lines["Stream #1"] = [Event("gemm", device.begin_ns + at, 100) for at in (6_000_000, 7_000_000)]
    timeline = read_xplane(written(tmp_path, space(host, device)))
    assert (timeline.steps.end_ns - timeline.steps.start_ns).tolist() == [1_000_100]
    assert "work on a device" in (timeline.steps.inferred or "")
