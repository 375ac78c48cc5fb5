"""From rows to facts: which steps and processes are judged, and where their time went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import HEALTHY, event, facts, place, process, reading, recording, steps, worker

from nearpeak.diagnose.recorded import diagnose_recording
from nearpeak.diagnose.reduce_recording import first_steps, reduce_recording
from nearpeak.recording import ProcessRecord, StepRecord


def test_a_healthy_run_is_told_and_nothing_is_found(tmp_path: Path) -> None:
    diagnosis = diagnose_recording(recording(tmp_path, steps()))
    assert diagnosis.findings == ()
    assert diagnosis.facts.steps == 55
    assert diagnosis.facts.step_ms == pytest.approx(30)
    assert diagnosis.facts.source == "steps 5 to 59 of the recording"


def test_the_breakdown_sums_to_the_steps(tmp_path: Path) -> None:
    made, _ = reduce_recording(recording(tmp_path, steps(input=10.0, logging=4.0, columns={"sync_ms": 3.0})))
    assert made.breakdown is not None
    assert made.breakdown.window_ns == pytest.approx(55 * 43.8e6)
    assert made.breakdown.share("input") == pytest.approx(10 / 43.8)
    assert made.breakdown.share("sync") == pytest.approx(3 / 43.8)
    assert made.breakdown.share("host_work") == pytest.approx(1 / 43.8)
    assert made.breakdown.share("compute") == pytest.approx(29 / 43.8)


def test_a_run_on_the_cpu_is_said_to_be_one(tmp_path: Path) -> None:
    _, unknown = reduce_recording(recording(tmp_path, steps()))
    assert any("computes on the CPU" in sentence for sentence in unknown)


def test_the_slow_beginning_is_left_out_and_told_apart(tmp_path: Path) -> None:
    made, _ = reduce_recording(recording(tmp_path, steps(other=lambda n: 3000.8 if n in (0, 6) else 0.8)))
    assert made.run is not None
    assert made.run.first_steps == 5
    assert made.run.first_steps_extra_ms == pytest.approx(3000)


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=200))
def test_at_most_a_third_is_beginning(walls: list[float]) -> None:
    count = first_steps(np.array(walls))
    assert 0 <= count <= max(min(5, len(walls) // 4), len(walls) // 3)


def test_slow_steps_follow_the_usual_first_ones() -> None:
    assert first_steps(np.array([9.0] * 8 + [1.0] * 40)) == 8
    assert first_steps(np.array([9.0] * 40 + [1.0] * 41)) == 27  # slowness that lasts is the run


def test_too_few_steps_are_not_judged(tmp_path: Path) -> None:
    diagnosis = diagnose_recording(recording(tmp_path, steps(4)))
    assert diagnosis.facts.breakdown is None
    assert "4 optimizer steps" in diagnosis.unknown[0]


def test_a_recording_without_steps_says_so(tmp_path: Path) -> None:
    assert "No optimizer step" in diagnose_recording(recording(tmp_path)).unknown[0]


def test_a_recording_without_phases_has_no_breakdown(tmp_path: Path) -> None:
    rows = [StepRecord(step=n, wall_s=0.03, samples=8) for n in range(30)]
    made, unknown = reduce_recording(recording(tmp_path, rows))
    assert made.breakdown is None
    assert made.run is not None
    assert made.run.samples_per_s == pytest.approx(8 / 0.03)
    assert any("no phases" in sentence for sentence in unknown)


def test_ranks_belong_together_and_the_late_one_is_named(tmp_path: Path) -> None:
    """Rank 1 reads slowly; rank 0 waits for it inside its backward pass, on no core."""
    rows = [process(0, ranks=2), process(1, ranks=2)]
    fast = steps(process=0, backward=58.0, columns={"backward_cpu_ms": 17.0, "samples": 32})
    slow = steps(process=1, input=40.2, columns={"backward_cpu_ms": 17.0, "samples": 32})
    made, _ = reduce_recording(recording(tmp_path, rows, fast, slow))
    assert made.run is not None
    assert made.run.slowest_rank == 1
    assert made.run.straggler_ms == pytest.approx(40)
    assert made.run.slowest_share == 1
    assert made.run.samples_per_step == 64
    assert made.ranks[0].share("straggler") == pytest.approx(40 / 70)
    assert made.ranks[0].share("communication") == pytest.approx(1 / 70)
    assert made.ranks[1].share("straggler") == 0
    assert made.ranks[1].share("input") == pytest.approx(40.2 / 70)


def test_of_two_trainings_the_longer_is_judged(tmp_path: Path) -> None:
    rows = [process(0), process(1), steps(20, process=0), steps(90, process=1)]
    made, unknown = reduce_recording(recording(tmp_path, *rows))
    assert made.steps == 85
    assert any("pid 1000" in sentence for sentence in unknown)


def test_the_device_clock_tells_idle_from_compute(tmp_path: Path) -> None:
    """The host queues work ahead: its own phases are short, the device's are not."""
    on_device = {"device_forward_ms": 10.0, "device_backward_ms": 20.0, "device_optimizer_ms": 4.0}
    rows = steps(input=12.0, forward=3.0, backward=6.0, optimizer=1.0, logging=30.0, other=0.0, columns=on_device)
    made, _ = reduce_recording(recording(tmp_path, process(made=facts(device="cuda:0", device_index=0)), rows))
    assert made.breakdown is not None
    assert made.breakdown.share("compute") == pytest.approx(34 / 52)
    assert made.breakdown.share("input") == pytest.approx(12 / 52)
    assert made.breakdown.share("host_work") == pytest.approx(6 / 52)


def test_a_starved_device_is_idle_inside_its_passes(tmp_path: Path) -> None:
    columns = {"device_forward_ms": 9.0, "device_backward_ms": 18.0, "device_optimizer_ms": 2.0, "starved_share": 0.9}
    rows = [process(made=facts(device="cuda:0", device_index=3)), steps(columns=columns)]
    readings = [reading(at, 3, busy_percent=40.0) for at in range(300, 1200, 100)]
    made, _ = reduce_recording(recording(tmp_path, *rows, readings))
    assert made.breakdown is not None
    assert made.breakdown.share("launch") == pytest.approx((29 - 12) / 30)
    assert made.breakdown.share("compute") == pytest.approx(12 / 30)


def test_what_lies_beside_the_steps_is_reduced(tmp_path: Path) -> None:
    """The first five steps take 150 ms: what happened in them is not counted."""
    made, _ = reduce_recording(
        recording(
            tmp_path,
            steps(columns={"rss_bytes": lambda n: 1_000_000 + 5000 * n, "tokens": 60, "padded_tokens": 100}),
            [event("checkpoint", at, 8.0) for at in (100, 500, 900)],
            [worker(1, 20, 30.0, 12.0, 80.0), worker(2, 40, 30.0, 12.0, 100.0), worker(3, 0, 0, 0)],
            [place("input", 10, "a.py:1 f"), place("forward", 30, "b.py:2 g"), place("worker", 8, "c.py:3 h")],
            [reading(at, -1, busy_percent=50.0, throttle_reasons=None) for at in (100, 400, 800)],
        )
    )
    run = made.run
    assert run is not None
    assert run.padded_share == pytest.approx(0.4)
    assert (run.events["checkpoint"].count, run.events["checkpoint"].total_ms) == (2, 16)
    assert run.workers is not None
    assert (run.workers.seen, run.workers.batches, run.workers.first_batch_ms) == (2, 60, 90)
    assert (run.workers.fetch_ms, run.workers.fetch_cpu_ms) == (30, 12)
    assert [each.share for each in run.places] == [0.75, 0.25, 1.0]
    assert run.growth[0].memory == "process"
    assert run.growth[0].bytes_per_step == pytest.approx(5000)
    assert run.growth[0].rising_share == 1
    assert run.readings[0].readings == 2
    assert run.readings[0].throttled_share is None


def test_reasons_that_slow_nothing_down_are_no_throttling(tmp_path: Path) -> None:
    rows = [reading(400 + n, 0, throttle_reasons=why) for n, why in enumerate(["", "gpu_idle", "sw_power_cap", "none"])]
    made, _ = reduce_recording(recording(tmp_path, steps(), rows))
    assert made.run is not None
    assert made.run.readings[0].throttled_share == 0.25
    assert made.run.readings[0].throttle_reasons == ("sw_power_cap",)


def test_phases_of_the_builder_are_the_healthy_ones(tmp_path: Path) -> None:
    made, _ = reduce_recording(recording(tmp_path, steps()))
    assert made.run is not None
    assert {name: ms for name, ms in made.run.phase_ms.items() if ms} == pytest.approx(HEALTHY)
    assert made.run.mean_step_ms == pytest.approx(sum(HEALTHY.values()))


def test_a_process_without_a_record_is_judged_too(tmp_path: Path) -> None:
    made, _ = reduce_recording(recording(tmp_path, ProcessRecord(process=9, pid=9, started_ns=0), steps()))
    assert made.steps == 55


def test_a_crowded_machine_is_told(tmp_path: Path) -> None:
    """Of four cores this run takes one; the machine is fully busy."""
    busy = [reading(at, -1, busy_percent=100.0) for at in (400, 500)]
    _, unknown = reduce_recording(recording(tmp_path / "a", steps(columns={"cpu_ms": 30.0}), busy))
    assert any("75 % of the CPU's time" in sentence for sentence in unknown)
    _, unknown = reduce_recording(recording(tmp_path / "b", steps(columns={"cpu_ms": 118.0}), busy))
    assert not any("Other processes" in sentence for sentence in unknown)


def test_a_fault_of_the_probe_is_told_once(tmp_path: Path) -> None:
    broken = [replace(process(n, ranks=2), fault="KeyError: 'x' (hooks.py:9)", lost_steps=2 * n) for n in (0, 1)]
    for rows in ([*steps(process=0), *steps(process=1)], []):
        _, unknown = reduce_recording(recording(tmp_path / str(len(rows)), broken, rows))
        assert [sentence for sentence in unknown if "KeyError" in sentence] == [
            "Watching stopped early in pid 1000, 1001, by a fault inside nearpeak: KeyError: 'x' (hooks.py:9). "
            "The training went on; later steps are not recorded."
        ]
        assert "2 steps are missing: the disk refused them." in unknown
