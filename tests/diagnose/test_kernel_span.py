"""Figures over the kernel span, against the definitions of HolisticTraceAnalysis 0.5: a slow, obvious version of them
here, and that package itself where an interpreter has it (name it in HTA_PYTHON)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.diagnose.kernel_span import KernelSpan, kernel_span
from nearpeak.trace.kineto import read_kineto
from nearpeak.trace.timeline import Kind, Lane, Timeline

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "traces"
TRACES = sorted([*CASES.glob("*.json.gz"), *CASES.glob("*/*.pt.trace.json")]) if CASES.is_dir() else []
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
EXCHANGE = re.compile(r"^nccl|ncclKernel")
NO_COMPUTE = re.compile(r"^nccl|Memcpy|Memset|dma|Sync|^Stream Wait Event|cuda.*LaunchKernel|^hip")
POINTS = 0.5


def ours(path: Path) -> KernelSpan:
    """Of what the steps before the last launched, as that package takes it; of everything where none are marked."""
    timeline = read_kineto(path)
    rows = timeline.rows(Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY)
    if timeline.steps.inferred is None and len(timeline.steps) > 1:
        early = (timeline.kind > Kind.DEVICE_SPAN) & (timeline.start_ns < timeline.steps.start_ns[-1])
        rows = rows[np.isin(timeline.correlation[rows], timeline.correlation[early & (timeline.correlation >= 0)])]
    span = kernel_span(timeline, rows)
    assert span is not None
    return span


def percentages(span: KernelSpan) -> list[float | None]:
    shares = [100 * part / span.span_ns for part in (span.idle_ns, span.compute_ns, span.non_compute_ns)]
    return [*shares, None if span.overlap_share is None else 100 * span.overlap_share]


def assert_close(found: list[float | None], expected: list[float | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or abs(one - other) <= POINTS


# -- the definitions, the slow way -------------------------------------------------------------------------------------


def load(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    events = document if isinstance(document, list) else document["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and "dur" in event and event.get("cat") != "Trace"]


def reference(path: Path) -> list[float | None]:
    events = load(path)
    device = [event for event in events if str(event.get("cat", "")).lower() in DEVICE_CATEGORIES]
    host = [event for event in events if not str(event.get("cat", "")).lower().startswith(("gpu_", *DEVICE_CATEGORIES))]
    steps = [event["ts"] for event in host if str(event["name"]).startswith("ProfilerStep")]
    if len(set(steps)) > 1:
        early = {event.get("args", {}).get("correlation") for event in host if event["ts"] < max(steps)} - {None, -1}
        device = [event for event in device if event["args"].get("correlation") in early]
    spans = [(round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000), event["name"]) for event in device]
    return shares(spans)


def shares(spans: list[tuple[int, int, str]]) -> list[float | None]:
    """Instant by instant: between two neighbouring begins or ends nothing changes."""
    spans = [each for each in spans if each[1] > each[0]]
    marks: dict[int, list[tuple[int, int]]] = {}
    for start, end, name in spans:
        kind = 1 if EXCHANGE.search(name) else 0 if not NO_COMPUTE.search(name) else 2
        marks.setdefault(start, []).append((kind, 1))
        marks.setdefault(end, []).append((kind, -1))
    moments = sorted(marks)
    running, totals = [0, 0, 0], dict.fromkeys(("idle", "compute", "exchange", "both"), 0)
    for moment, following in pairwise(moments):
        for kind, change in marks[moment]:
            running[kind] += change
        lasts = following - moment
        totals["idle"] += lasts if not any(running) else 0
        totals["compute"] += lasts if running[0] else 0
        totals["exchange"] += lasts if running[1] else 0
        totals["both"] += lasts if running[0] and running[1] else 0
    whole = moments[-1] - moments[0]
    idle, compute = 100 * totals["idle"] / whole, 100 * totals["compute"] / whole
    overlap = 100 * totals["both"] / totals["exchange"] if totals["exchange"] else None
    return [idle, compute, 100 - idle - compute, overlap]


@pytest.mark.skipif(not TRACES, reason="the recorded traces are not on this machine")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:40])
def test_recorded_traces_give_the_figures_of_the_definitions(path: Path) -> None:
    assert_close(percentages(ours(path)), reference(path))


NAMES = ("gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)")
KINDS = (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY, Kind.KERNEL)
event = st.tuples(st.integers(0, 300), st.integers(1, 60), st.integers(0, 3))


@settings(max_examples=200, deadline=None)
@given(st.lists(event, min_size=1, max_size=30))
def test_any_events_give_the_figures_of_the_definitions(events: list[tuple[int, int, int]]) -> None:
    events = sorted(events, key=lambda each: (each[0], -each[1]))
    columns = [np.array(column, dtype=np.int64) for column in zip(*events, strict=True)]
    timeline = Timeline(
        source="random",
        start_ns=columns[0],
        duration_ns=columns[1],
        kind=np.array(KINDS, dtype=np.uint8)[columns[2]],
        lane=np.zeros(len(events), np.int32),
        name=columns[2].astype(np.int32),
        correlation=np.full(len(events), -1),
        n_bytes=np.full(len(events), -1),
        names=NAMES,
        lanes=(Lane(process="0", thread="7", device=0),),
    )
    span = kernel_span(timeline, np.arange(len(events)))
    assert span is not None
    expected = shares([(start, start + lasts, NAMES[name]) for start, lasts, name in events])
    for one, other in zip(percentages(span), expected, strict=True):
        assert one == other or (one is not None and other is not None and one == pytest.approx(other, abs=1e-9))


def test_no_event_no_span() -> None:
    assert kernel_span(Timeline(source="empty"), np.zeros(0, np.intp)) is None


# -- the package itself ------------------------------------------------------------------------------------------------

SCRIPT = """
import json, logging, sys, warnings
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
names = ("idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg")
print(json.dumps([float(row[name]) for name in names] + [None if overlap != overlap else float(overlap)]))
"""


def interpreter() -> str | None:
    return os.environ.get("HTA_PYTHON") or (sys.executable if importlib.util.find_spec("hta") else None)


@pytest.mark.skipif(interpreter() is None, reason="HolisticTraceAnalysis is not installed")
@pytest.mark.skipif(not TRACES, reason="the recorded traces are not on this machine")
@pytest.mark.parametrize("path", [path for path in TRACES if path.parent == CASES], ids=lambda path: path.name[:40])
def test_recorded_traces_give_the_figures_of_the_package(path: Path) -> None:
    """Its cut of every time to whole microseconds is switched off: in its own words, a makeshift."""
    command = [interpreter() or "", "-c", SCRIPT, str(path)]
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1", "PYTHONPATH": ""}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
    assert_close(percentages(ours(path)), json.loads(output.splitlines()[-1]))
