"""Each rule fires on its cause and says what to do; it is silent on a healthy run and where its input is missing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_runs import HEALTHY, facts, process, recording, steps, worker
from rule_cases import CASES, Case

from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.diagnose.recorded import diagnose_recording
from nearpeak.diagnose.rules import findings
from nearpeak.finding import Finding
from nearpeak.recording import ProcessRecord, StepRecord
from nearpeak.recording.schema import PHASES

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def all_of(diagnosis: Diagnosis) -> list[Finding]:
    return [*diagnosis.findings, *diagnosis.folded]


def matching(diagnosis: Diagnosis, case: Case) -> list[Finding]:
    return [each for each in all_of(diagnosis) if each.kind == case.kind and re.search(case.title, each.title)]


@each_case
def test_it_fires_on_its_cause(case: Case, tmp_path: Path) -> None:
    found = matching(diagnose_recording(recording(tmp_path, *case.rows)), case)
    assert len(found) == 1
    assert re.search(case.remedy, found[0].remedy)
    assert (found[0].gain is not None) is case.counted
    assert all(each.source for each in found[0].evidence)


@each_case
def test_the_cause_stands_at_the_top(case: Case, tmp_path: Path) -> None:
    """Among findings that are worth acting on; what only informs may stand below its cause."""
    diagnosis = diagnose_recording(recording(tmp_path, *case.rows))
    found = matching(diagnosis, case)[0]
    if found.severity == "info":
        return
    assert diagnosis.findings[0] == found


@each_case
def test_it_is_silent_where_its_input_is_missing(case: Case, tmp_path: Path) -> None:
    if not case.without:
        return
    rows = [row for each in case.rows for row in (each if isinstance(each, list) else [each])]
    lacking = [without(row, case.without) if isinstance(row, StepRecord) else row for row in rows]
    diagnosis = diagnose_recording(recording(tmp_path, lacking))
    assert not matching(diagnosis, case)


def without(row: StepRecord, column: str) -> StepRecord:
    return dataclasses.replace(row, **{column: None})


@each_case
def test_a_recording_that_knows_hardly_anything_is_read(case: Case, tmp_path: Path) -> None:
    """The same run, by a probe that could only count updates."""
    rows = [row for each in case.rows for row in (each if isinstance(each, list) else [each])]
    bare = [
        StepRecord(process=row.process, step=row.step, wall_s=row.wall_s) if isinstance(row, StepRecord) else row
        for row in rows
    ]
    bare = [dataclasses.replace(row, facts="{}") if isinstance(row, ProcessRecord) else row for row in bare]
    diagnosis = diagnose_recording(recording(tmp_path, bare))
    assert all(each.kind in ("startup", "memory_growth") for each in all_of(diagnosis))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"framework": "transformers", "loader_workers": 0},
        {"bf16_is_fast": True, "autocast_dtype": "bfloat16"},
        {"device": "cuda:0", "device_index": 0, "bf16_is_fast": True, "autocast_dtype": "bfloat16", "threads": 64},
        {"autocast_dtype": "float16", "grad_scaler": True},
        {"threads": 2, "trainable_tensors": 400},
    ],
)
def test_a_healthy_run_has_no_finding(changes: dict[str, Any], tmp_path: Path) -> None:
    columns = {
        "syncs": 1,
        "sync_ms": 0.05,
        "compile_ms": 0.0,
        "collect_ms": 0.2,
        "collections": 1,
        "samples": 32,
        "tokens": 950,
        "padded_tokens": 1000,
        "skipped_updates": 0,
        "rss_bytes": lambda n: 10**9 + 10**6 * (n % 7),
    }
    diagnosis = diagnose_recording(recording(tmp_path, process(made=facts(**changes)), steps(columns=columns)))
    assert diagnosis.findings == ()


@given(
    phase_ms=st.fixed_dictionaries({name: st.floats(0, 500) for name in PHASES}),
    workers=st.integers(0, 32),
    threads=st.integers(1, 128),
    micro_batches=st.integers(1, 64),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_gain_exceeds_the_step(
    phase_ms: dict[str, float], workers: int, threads: int, micro_batches: int, tmp_path_factory: Any
) -> None:
    """Whatever a step is made of: gains are shares of it, and the diagnosis holds together."""
    if sum(phase_ms.values()) < 1e-3:
        return
    made = facts(loader_workers=workers, threads=threads, bf16_is_fast=True, optimizer_options={})
    columns = {"micro_batches": micro_batches, "sync_ms": phase_ms["logging"], "syncs": 3, "fetch_ms": 20.0}
    rows = [process(made=made), steps(20, columns=columns, **phase_ms)]
    diagnosis = diagnose_recording(recording(tmp_path_factory.mktemp("run"), *rows))
    for finding in all_of(diagnosis):
        assert finding.gain is None or 0 <= finding.gain.low <= finding.gain.high <= 1
    if diagnosis.facts.breakdown:
        assert diagnosis.facts.breakdown.window_ns == pytest.approx(15e6 * sum(phase_ms.values()), rel=1e-3)


def test_small_gains_are_folded_away(tmp_path: Path) -> None:
    diagnosis = diagnose_recording(recording(tmp_path, *CASES["pageable"].rows))
    assert all(each.gain is None or each.gain.likely >= 0.03 for each in diagnosis.findings)
    assert all(each.gain is not None and each.gain.likely < 0.03 for each in diagnosis.folded)


def test_findings_are_ranked_by_gain(tmp_path: Path) -> None:
    rows = (process(made=facts(optimizer_options={}, loader_workers=0)), steps(input=30.0, optimizer=9.0, logging=12.0))
    gains = [each.gain.likely for each in diagnose_recording(recording(tmp_path, *rows)).findings if each.gain]
    assert len(gains) >= 3
    assert gains == sorted(gains, reverse=True)


def test_the_healthy_step_is_what_the_cases_differ_from() -> None:
    assert sum(HEALTHY.values()) == pytest.approx(30)
    assert findings.__doc__


def test_threads_that_fight_show_by_the_time_off_core(tmp_path: Path) -> None:
    """Nine tenths of the step without a core promise more than a tenth."""
    likely = []
    for number, main_cpu_ms in enumerate((3.0, 27.0)):
        rows = (process(made=facts(threads=48)), steps(columns={"main_cpu_ms": main_cpu_ms}))
        found = all_of(diagnose_recording(recording(tmp_path / str(number), *rows)))
        likely.append(next(each.gain.likely for each in found if each.kind == "threads" and each.gain))
    assert likely == pytest.approx([0.9, 0.1])


def test_waiting_for_a_core_is_not_waiting_for_storage(tmp_path: Path) -> None:
    """On a crowded machine all phases run at a third of their pace; fetching is no exception, and no storage."""
    columns = {"fetch_ms": 24.0, "fetch_cpu_ms": 8.0, "main_cpu_ms": 18.0}
    rows = (process(made=facts(loader_workers=0)), steps(input=25.0, columns=columns))
    assert "no workers" in diagnose_recording(recording(tmp_path, *rows)).findings[0].title


def test_workers_that_keep_up_are_enough(tmp_path: Path) -> None:
    """Taking a batch over costs 9 % of a short step; more workers would not change it."""
    rows = (process(), steps(input=2.8), [worker(1, 60, 5.0, 5.0), worker(2, 60, 5.0, 5.0)])
    assert diagnose_recording(recording(tmp_path, *rows)).findings == ()
