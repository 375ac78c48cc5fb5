"""TensorFlow on several workers: an XPlane file for each host, whose clocks differ, with two devices each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nearpeak.diagnose.diagnosis import conclude
from nearpeak.diagnose.reduce_traces import reduce_traces
from nearpeak.trace.formats import read_traces, traces_below

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))  # tests are no package
from xplane_writer import Event, PlaneWriter, space

STEP_NS, MS = 20_000_000, 1_000_000
SKEW_NS = 300 * MS


def worker(number: int, steps: int = 5, late_ms: int = 4) -> bytes:
    """20 ms steps: 2 ms of input on a thread of its own, 8 ms of work, an exchange that all end 16 ms into the step.
    The second device of the second worker takes `late_ms` longer to come to it."""
    begin_ns = 1_700_000_000_000_000_000 + number * SKEW_NS
    host = PlaneWriter("/host:CPU", begin_ns=begin_ns)
    devices = [PlaneWriter(f"/device:GPU:{index}", begin_ns=begin_ns) for index in (0, 1)]
    for step in range(steps):
        t = begin_ns + step * STEP_NS
        host.lines.setdefault("python", []).append(Event("train", t, STEP_NS - 10_000, {"step_num": step, "_r": 1}))
        waiting = Event("IteratorGetNext:IteratorGetNext", t + 10_000, 2 * MS)
        host.lines.setdefault("tf_data_iterator_get_next", []).append(waiting)
        for index, device in enumerate(devices):
            work_ms = 8 + (late_ms if (number, index) == (1, 1) else 0)
            call = {"correlation_id": 10 * step + index + 1}
            host.lines.setdefault("tf_Compute", []).append(Event("cuLaunchKernel", t + 2_020_000, 10_000, call))
            exchange_ns = t + (2 * MS + 50_000) + work_ms * MS
            device.lines.setdefault("Stream #14(Compute)", []).extend(
                (
                    Event("gemm", t + 2 * MS + 50_000, work_ms * MS, call),
                    Event("ncclKernel_AllReduce_RING_LL_Sum_float", exchange_ns, t + 16 * MS - exchange_ns),
                )
            )
    return space(host, *devices)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins" / "profile" / "2024_05_01_10_00_00"
    folder.mkdir(parents=True)
    for number in (0, 1):
        (folder / f"worker-{number}.xplane.pb").write_bytes(worker(number))
    return tmp_path


def test_every_device_of_every_worker_is_judged_and_the_late_one_named(run: Path) -> None:
    timelines = read_traces(traces_below(run))
    assert [timeline.rank for timeline in timelines] == [0, 1]
    facts, _ = reduce_traces(timelines)
    assert facts.trace is not None and facts.breakdown is not None
    assert [(rank.rank, rank.device) for rank in facts.trace.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(sum(rank.idle_ns.values()) + rank.compute_ns + rank.communication_ns == rank.window_ns
               for rank in facts.ranks)  # fmt: skip
    assert 100 * facts.breakdown.share("input") == pytest.approx(10, abs=1)
    (late,) = (finding for finding in conclude(facts).findings if finding.kind == "straggler")
    assert "GPU 1 of rank 1 (12.0 ms a step)" in late.title
