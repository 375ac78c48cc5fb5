"""Recordings made to order, on disk, through the rows that the probe writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearpeak.recording import (
    EventRecord,
    ProcessRecord,
    ReadingRecord,
    Recording,
    RowWriter,
    StackRecord,
    StepRecord,
    WorkerRecord,
    describe_run,
)
from nearpeak.recording.process_facts import ProcessFacts
from nearpeak.recording.schema import PHASES, Row
from nearpeak.recording.writer import to_json

BEGIN_NS = 1_700_000_000_000_000_000
HEALTHY = {"input": 0.2, "forward": 9.0, "backward": 18.0, "optimizer": 2.0, "other": 0.8}
"""Milliseconds by phase: 30 a step."""


def facts(**changes: Any) -> ProcessFacts:
    """A plain loop on a CPU of four cores, set up as it should be."""
    usual = {
        "framework": "pytorch",
        "device": "cpu",
        "cores": 4,
        "threads": 4,
        "parameters": 1_000_000,
        "trainable_parameters": 1_000_000,
        "trainable_tensors": 12,
        "parameter_dtype": "float32",
        "bf16_is_fast": False,
        "optimizer": "AdamW",
        "optimizer_options": {"fused": True},
        "can_fuse": True,
        "loader_workers": 2,
        "loader_batch_size": 32,
        "persistent_workers": True,
    }
    return ProcessFacts(**{**usual, **changes})


def steps(count: int = 60, *, process: int = 0, columns: dict[str, Any] | None = None, **phase_ms: Any) -> list[Row]:
    """Steps whose phases are HEALTHY but for those given; a value may be a function of the step's number."""
    rows: list[Row] = []
    ends_ns = BEGIN_NS
    for number in range(count):
        phases = {name: _at(value, number) for name, value in {**HEALTHY, **phase_ms}.items()}
        wall_ms = sum(phases.values())
        ends_ns += round(1e6 * wall_ms)
        rows.append(
            StepRecord(
                process=process,
                step=number,
                ended_ns=ends_ns,
                wall_s=wall_ms / 1e3,
                **{f"{name}_ms": phases.get(name, 0.0) for name in PHASES},
                **{name: _at(value, number) for name, value in {"micro_batches": 1, **(columns or {})}.items()},
            )
        )
    return rows


def process(number: int = 0, *, ranks: int = 1, made: ProcessFacts | None = None) -> ProcessRecord:
    """Its rank is its number where there are several."""
    return ProcessRecord(
        process=number,
        pid=1000 + number,
        started_ns=BEGIN_NS,
        rank=number if ranks > 1 else None,
        world_size=ranks if ranks > 1 else None,
        facts=(made or facts()).to_json(),
    )


def place(phase: str, samples: int, *frames: str, process: int = 0, total_ms: float | None = None) -> StackRecord:
    return StackRecord(
        process=process, phase=phase, frames=json.dumps(list(frames)), samples=samples, total_ms=total_ms
    )


def event(
    kind: str, at_ms: float, duration_ms: float | None = None, *, in_step: int | None = None, **detail: Any
) -> EventRecord:
    return EventRecord(
        process=0,
        at_ns=BEGIN_NS + round(1e6 * at_ms),
        kind=kind,
        step=in_step,
        duration_ms=duration_ms,
        detail=json.dumps(detail),
    )


def worker(pid: int, batches: int, fetch_ms: float, cpu_ms: float, first_batch_ms: float | None = None) -> WorkerRecord:
    """`fetch_ms` and `cpu_ms` are of one batch."""
    return WorkerRecord(
        process=0,
        pid=pid,
        batches=batches,
        fetch_ms=batches * fetch_ms,
        fetch_cpu_ms=batches * cpu_ms,
        first_batch_ms=first_batch_ms,
    )


def reading(at_ms: float, device: int = 0, **values: Any) -> ReadingRecord:
    return ReadingRecord(at_ns=BEGIN_NS + round(1e6 * at_ms), device=device, **values)


def recording(folder: Path, *rows: Row | Sequence[Row]) -> Recording:
    """What `nearpeak run` would leave behind. Without a process among the rows, one is added."""
    flat = [row for each in rows for row in ([each] if isinstance(each, Row) else each)]
    if not any(isinstance(row, ProcessRecord) for row in flat):
        flat.append(process())
    folder.mkdir(parents=True, exist_ok=True)
    writer = RowWriter(folder)
    writer.write_info("run", to_json(describe_run(command=("python", "train.py"))))
    assert writer.write(flat), writer.fault
    writer.close()
    return Recording(folder)


def _at(value: Any, number: int) -> Any:
    return value(number) if callable(value) else value
