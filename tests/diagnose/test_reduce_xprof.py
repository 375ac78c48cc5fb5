"""XProf's figures under nearpeak's causes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearpeak.diagnose.reduce_xprof import reduce_xprof
from nearpeak.diagnose.rules import findings
from nearpeak.trace.xprof import PARTS, OpTime, XprofFigures, is_xprof, read_xprof

CASE = Path(__file__).parents[2].parent / "shared" / "cases" / "traces" / "tensorflow" / "GPU-input-bound"


def figures(host: str = "a", *, step_ms: float = 100.0, **parts: float) -> XprofFigures:
    columns = {part: np.full(3, parts.get(part, 0.0)) for part in PARTS}
    return XprofFigures(source=f"{host}.overview_page.pb", host=host, step_ms=np.full(3, step_ms), parts_ms=columns)


def test_every_part_has_its_cause_and_what_is_left_is_other() -> None:
    parts = dict(zip(PARTS, (1.0, 30.0, 4.0, 5.0, 20.0, 6.0, 7.0, 8.0, 9.0, 2.0), strict=True))
    facts, _ = reduce_xprof([figures(**parts)])
    assert facts.breakdown is not None
    found = facts.breakdown.as_percentages()
    assert (found["compute"], found["communication"], found["copy"]) == pytest.approx((20.0, 7.0, 15.0))
    idle = found["idle"]
    assert (idle["input"], idle["host_work"], idle["launch"], idle["other"]) == pytest.approx((30.0, 10.0, 9.0, 9.0))
    assert facts.steps == 3 and facts.step_ms == pytest.approx(100.0)


def test_hosts_are_ranks_and_those_without_steps_are_named() -> None:
    empty = XprofFigures(source="c.kernel_stats.pb", host="c", notes=("XProf's files hold no times of steps.",))
    facts, unknown = reduce_xprof([figures("a", compute=90.0), figures("b", wait_input=90.0), empty])
    assert [rank.share("compute") for rank in facts.ranks] == pytest.approx([0.9, 0.0])
    assert any("c.kernel_stats.pb" in each for each in unknown)
    facts, unknown = reduce_xprof([empty])
    assert facts.breakdown is None
    assert any("xplane.pb" in each for each in unknown)


def test_kernels_and_exchanges_of_its_tables_are_facts() -> None:
    ops = (
        OpTime("volta_sgemm", "model/dense", True, 5, 900.0, tensor_cores=False, eligible=True),
        OpTime("all", "NcclAllReduce", True, 3, 70.5),
        OpTime("map", "Dataset", False, 3, 10.0),
    )
    facts, _ = reduce_xprof([replace(figures(compute=90.0), ops=ops)])
    assert facts.trace is not None
    assert [(each.name, each.time_ns, each.uses_tensor_cores) for each in facts.trace.kernels] == [
        ("volta_sgemm", 900_000, False)
    ]
    assert [(each.operation, each.time_ns) for each in facts.trace.collectives] == [("NcclAllReduce", 70_500)]


@pytest.mark.skipif(not CASE.is_dir(), reason="the recorded trace is not on this machine")
def test_the_recorded_run_is_as_input_bound_as_xprof_says() -> None:
    facts, _ = reduce_xprof(read_xprof([path for path in CASE.iterdir() if is_xprof(path)]))
    assert facts.breakdown is not None
    assert 100 * facts.breakdown.share("input") == pytest.approx(81.4, abs=0.5)
    first = findings(facts)[0]
    assert first.kind == "input" and "tf.data" in first.remedy
    assert facts.trace is not None and facts.trace.input_stage is not None
    assert "MapAndBatch" in facts.trace.input_stage  # the stage that works, not those that wait for it
