"""Traces that others recorded: the known cause comes first, and the figures are those known."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nearpeak.diagnose.diagnosis import Diagnosis, conclude
from nearpeak.diagnose.reduce_traces import reduce_traces
from nearpeak.trace.formats import read_traces, traces_below
from nearpeak.trace.repeats import repeated_steps

TRACES = Path(__file__).parents[3] / "shared" / "cases" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/cases/traces is not there")
WITHIN = 2.0
"""Percentage points."""

KNOWN: dict[str, tuple[set[str], dict[str, float]]] = {
    "resnet50_v100_workers0_a.json.gz": ({"input"}, {"idle": 35.6, "input": 23.2}),
    "resnet50_v100_workers4_a.json.gz": ({"launch", "precision", "host_work"}, {"idle": 27.6, "input": 0.8}),
    "owlv2_h100_input_bound.json.gz": ({"input"}, {"input": 51.1}),
    "timesformer_h100_host_work_in_step.json.gz": ({"host_work"}, {"idle": 58.6}),
    "bert_small_h100_launch_bound.json.gz": ({"launch"}, {"launch": 80.7}),
    "resnet_v100_fp32_compute.json.gz": ({"precision"}, {"compute": 96.5}),
    "dlrm_v100_rank1of2_launch_and_comm.json.gz": ({"launch"}, {"launch": 32.8, "communication": 20.6}),
    "diff_control_a100_rank3of8.json.gz": ({"communication"}, {"communication": 18.9}),
}


@cache
def diagnosed(name: str) -> Diagnosis:
    path = TRACES / name
    facts, unknown = reduce_traces(read_traces(traces_below(path) if path.is_dir() else [path]))
    return conclude(facts, unknown)


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_cause_comes_first(name: str) -> None:
    kinds, figures = KNOWN[name]
    diagnosis = diagnosed(name)
    assert diagnosis.findings[0].kind in kinds
    breakdown = diagnosis.facts.breakdown
    assert breakdown is not None
    assert {cause: 100 * breakdown.share(cause) for cause in figures} == pytest.approx(figures, abs=WITHIN)


@pytest.mark.parametrize("name", [*KNOWN, "linear_2080ti.json.gz", "dlrm_v100_8ranks"])
def test_causes_sum_to_the_step_exactly(name: str) -> None:
    for rank in diagnosed(name).facts.ranks:
        parts = rank.compute_ns + rank.communication_ns + rank.copy_ns + sum(rank.idle_ns.values())
        assert parts == rank.window_ns > 0


def test_stragglers_of_eight_ranks_are_named_with_their_cost() -> None:
    diagnosis = diagnosed("dlrm_v100_8ranks")
    exposed = [100 * rank.share("communication") for rank in diagnosis.facts.ranks]
    assert len(exposed) == 8 and (min(exposed), max(exposed)) == pytest.approx((12.6, 55.6), abs=WITHIN)
    first = diagnosis.findings[0]
    assert first.kind == "straggler"
    told = {each.name: each.value for each in first.evidence}
    assert set(str(told["late_ranks"]).split(", ")) == {"2", "7"}
    assert float(told["rank_7_cost_ms"]) > float(told["rank_2_cost_ms"]) > 1


def test_the_gain_of_more_workers_was_as_predicted() -> None:
    """The pair of traces with and without workers: the measured gain lies in the interval, below the ceiling."""
    before, after = diagnosed("resnet50_v100_workers0_a.json.gz"), diagnosed("resnet50_v100_workers4_a.json.gz")
    gain = before.findings[0].gain
    assert gain is not None and before.facts.breakdown and after.facts.breakdown
    mean_ms = [d.facts.breakdown.window_ns / d.facts.steps for d in (before, after) if d.facts.breakdown]
    by_mean = 1 - mean_ms[1] / mean_ms[0]
    by_median = 1 - (after.facts.step_ms or 0) / (before.facts.step_ms or 1)
    assert (100 * by_mean, 100 * by_median) == pytest.approx((8.9, 16.7), abs=0.5)
    assert gain.low <= by_mean < gain.high and gain.low <= by_median <= gain.high
    assert gain.high == pytest.approx(before.facts.breakdown.share("input"))
    told = {each.name: str(each.value) for each in before.findings[0].evidence}
    assert "exposed waiting ÷ step" in told["gain_formula"] and "ResNet-50" in told["calibration"]


def test_what_the_host_did_is_named() -> None:
    assert "normalize" in diagnosed("timesformer_h100_host_work_in_step.json.gz").findings[0].title


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("resnet_v100_fp32_compute.json.gz", 0, 0),
        ("owlv2_h100_input_bound.json.gz", 0.99, 1),
        ("diff_control_a100_rank3of8.json.gz", 0.5, 0.9),
    ],
)
def test_tensor_cores_are_told_by_name(name: str, least: float, most: float) -> None:
    trace = diagnosed(name).facts.trace
    assert trace is not None and trace.tensor_core_share is not None
    assert least <= trace.tensor_core_share <= most


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("resnet50_v100_workers0_a.json.gz", 5),
        ("resnet_v100_fp32_compute.json.gz", 4),
        ("dlrm_v100_rank1of2_launch_and_comm.json.gz", 4),
        ("diff_control_a100_rank3of8.json.gz", 5),
        ("bert_small_h100_launch_bound.json.gz", 0),  # one step, of forward passes alone
        ("owlv2_h100_input_bound.json.gz", 0),
        ("timesformer_h100_host_work_in_step.json.gz", 0),
        ("nsys_h100_2gpu_1s.sqlite", 0),
    ],
)
def test_repeated_kernels_tell_the_steps_that_are_marked(name: str, steps: int) -> None:
    line = read_traces([TRACES / name])[0]
    found = repeated_steps(line)
    assert (0 if found is None else len(found)) == steps
    if found is not None:
        marked_ns = np.median(line.steps.end_ns - line.steps.start_ns)
        assert np.median(found.end_ns - found.start_ns) == pytest.approx(marked_ns, rel=0.03)
