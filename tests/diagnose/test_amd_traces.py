"""A trace as PyTorch's profiler writes it on AMD: HIP's calls, RCCL's and Tensile's kernels, copies by long names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearpeak.diagnose.diagnosis import conclude
from nearpeak.diagnose.kernel_span import kernel_span
from nearpeak.diagnose.reduce_traces import reduce_traces
from nearpeak.trace.formats import read_traces
from nearpeak.trace.timeline import Kind

MI300 = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 205_822_885_888, "computeMajor": 9,
         "computeMinor": 4, "numSms": 304}  # fmt: skip


def event(category: str, name: str, ts: float, dur: float, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def one_step(number: int, t: float) -> list[dict[str, Any]]:
    """100 µs: a copy in, a product, an exchange of which 10 µs are hidden, a memory fill, a value read."""
    first = 10 * number
    call = lambda name, at, dur, n: event("cuda_runtime", name, t + at, dur, 900, 900, correlation=first + n)  # noqa: E731
    return [
        event("user_annotation", f"ProfilerStep#{number}", t, 100, 900, 900),
        call("hipMemcpyWithStream", 2, 10, 1),
        event("gpu_memcpy", "CopyHostToDevice", t + 5, 5, 2, 0, correlation=first + 1, bytes=1 << 20),
        call("hipExtModuleLaunchKernel", 14, 2, 2),
        event("kernel", "Cijk_Ailk_Bljk_SB_MT64x64x16_SN_ISA942", t + 16, 30, 2, 0, correlation=first + 2),
        call("hipExtLaunchKernel", 18, 2, 3),
        event("kernel", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", t + 36, 30, 2, 3,
              correlation=first + 3),
        call("hipMemsetAsync", 62, 2, 4),
        event("gpu_memset", "FillBuffer", t + 70, 2, 2, 0, correlation=first + 4),
        call("hipMemcpyWithStream", 74, 20, 5),
        event("gpu_memcpy", "CopyDeviceToHost", t + 80, 4, 2, 0, correlation=first + 5, bytes=4),
        event("cuda_runtime", "hipDeviceSynchronize", t + 95, 4, 900, 900, correlation=first + 6),
    ]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mi300.pt.trace.json"
    events = [each for number in range(4) for each in one_step(number, 1000.0 + 100 * number)]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [MI300], "traceEvents": events}))
    return path


def test_every_event_has_its_kind(trace: Path) -> None:
    (line,) = read_traces([trace])
    counts = {kind: len(line.rows(kind)) // 4 for kind in Kind}
    assert (counts[Kind.KERNEL], counts[Kind.COMMUNICATION], counts[Kind.COPY]) == (2, 1, 2)
    assert (counts[Kind.LAUNCH], counts[Kind.SYNC], counts[Kind.CALL]) == (5, 1, 0)
    span = kernel_span(line, line.rows(Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY))
    assert span is not None and span.overlap_ns == 4 * 10_000


def test_the_breakdown_and_the_finding(trace: Path) -> None:
    facts, _ = reduce_traces(read_traces([trace]))
    breakdown = facts.breakdown
    assert breakdown is not None and facts.trace is not None
    assert (breakdown.compute_ns, breakdown.communication_ns, breakdown.copy_ns) == (128_000, 80_000, 36_000)
    assert breakdown.idle_ns["sync"] == 4 * (2_000 + 10_000 + 4_000)
    assert facts.trace.device_name == "AMD Instinct MI300X"
    found = conclude(facts).findings
    precision = next(finding for finding in found if finding.kind == "precision")
    assert "matrix cores" in precision.title
