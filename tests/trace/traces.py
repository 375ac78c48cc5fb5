"""Small traces of our own, in the shapes that PyTorch's profiler has written over the years."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]


def span(category: str | None, name: str, ts: float, dur: float, tid: int | str = 7, pid: int | str = 42, **args: Any):
    """One complete event, times in µs."""
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
    return {key: value for key, value in event.items() if value is not None}


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, device: int = 0, **args: Any):
    return span("kernel", name, ts, dur, stream, device, device=device, stream=stream, correlation=correlation, **args)


def launch(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel", tid: int = 42):
    return span("cuda_runtime", name, ts, dur, tid, correlation=correlation)


def step(number: int, ts: float, dur: float):
    return span("user_annotation", f"ProfilerStep#{number}", ts, dur, 42)


def loop(steps: int = 3, begin_us: float = 1000.0) -> Events:
    """Steps of 100 µs: 30 µs of input, a kernel of 20 µs at 40, one of 10 µs at 80 launched late."""
    events: Events = []
    for number in range(steps):
        t, first = begin_us + 100 * number, 10 * number
        events += [
            step(number, t, 100),
            span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t, 30, 42),
            span("cpu_op", "aten::mm", t + 32, 6, 42),
            launch(t + 33, 4, first + 1),
            kernel("volta_sgemm_128x64_nn", t + 40, 20, first + 1),
            launch(t + 70, 5, first + 2),
            kernel("void at::native::vectorized_elementwise_kernel<4, float>()", t + 80, 10, first + 2),
        ]
    return events


def write(path: Path, events: Events, **around: Any) -> Path:
    """In today's form; gzipped if the name says so."""
    return write_text(path, json.dumps({"schemaVersion": 1, "traceEvents": events, **around}))


def write_text(path: Path, text: str | bytes) -> Path:
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
