"""Made-up runs for tests of renderers: what they look like is the tests' own affair, not a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from nearpeak.diagnose.breakdown import Breakdown, total
from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.diagnose.facts import Facts
from nearpeak.finding import Evidence, Finding
from nearpeak.forecast import Interval
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
from nearpeak.recording.writer import to_json

START_NS = 1_700_000_000_000_000_000
HOSTILE = "<script>alert('x')</script>&\"'</style><img src=http://example.com/x.png onerror=alert(1)>"


def finding(kind: str = "input", likely: float | None = 0.31, **changes: object) -> Finding:
    fields: dict = {
        "kind": kind,
        "title": "The step waits for its data",
        "evidence": (
            Evidence("wait_ms", 91.2, "steps 10 to 249 of the recording"),
            Evidence("loader_workers", 0, "the DataLoader's arguments"),
        ),
        "severity": "warning",
        "remedy": "Set dataloader_num_workers=4 in TrainingArguments: fetching takes 88 ms, computing 121 ms.",
        "gain": None if likely is None else Interval(0.6 * likely, likely, 1.2 * likely),
        "verify": "Run again: waiting for data should fall below 5 % of a step.",
    }
    return Finding(**{**fields, **changes})


def breakdown(input_share: float = 0.43, window_ms: float = 212.0) -> Breakdown:
    window_ns = int(window_ms * 1e6)
    waited, sync = int(window_ns * input_share), int(window_ns * 0.03)
    return Breakdown(
        window_ns=window_ns,
        compute_ns=window_ns - waited - sync,
        communication_ns=0,
        copy_ns=0,
        idle_ns={"input": waited, "sync": sync},
    )


def diagnosis(**changes: object) -> Diagnosis:
    facts = Facts(
        source="steps 10 to 249 of the recording",
        steps=240,
        step_ms=212.0,
        breakdown=total([breakdown()] * 240),
        ranks=(total([breakdown()] * 240),),
    )
    second = finding(
        "padding",
        0.12,
        title="Every third token is padding",
        evidence=(Evidence("padded_share", 0.33, "tokens of steps 10 to 249"),),
        remedy="Pad each batch to its longest text: padding=True in the collator instead of padding='max_length'.",
        severity="critical",
    )
    fields: dict = {
        "facts": facts,
        "findings": (finding(), second),
        "folded": (finding("logging", 0.01, title="Metrics are computed each step"),),
        "unknown": ("Device time: this torch has no CUDA device, so only host clocks were read.",),
    }
    return Diagnosis(**{**fields, **changes})


def record_run(
    folder: Path,
    *,
    steps: int = 250,
    ranks: int = 1,
    devices: int = 1,
    command: tuple[str, ...] = ("python", "train.py"),
    hostile: str = "",
    slow_rank: int | None = None,
    input_ms: float = 90.0,
    seed: int = 0,
) -> Recording:
    """A run that waits for its data, evaluates every hundred steps, and reads its devices."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = RowWriter(folder)
    writer.write_info("run", to_json(describe_run(command=(*command, *([hostile] if hostile else [])), ranks=ranks)))
    random = np.random.default_rng(seed)
    waits = [input_ms * (2 if rank == slow_rank else 1) * random.lognormal(0, 0.2, steps) for rank in range(ranks)]
    slowest = np.max(waits, axis=0)
    computing = 120 * random.lognormal(0, 0.03, steps)
    for rank in range(ranks):
        writer.write([_process(rank, ranks, hostile)])
        writer.write(_steps(rank, waits[rank], slowest - waits[rank], computing, random))
    writer.write(_surroundings(steps, devices, random, hostile))
    ending = {"at": "2026-01-01T00:10:00.000+00:00", "outcome": "finished", "lost_steps": 0, "exit_code": 0}
    writer.write_info("ending", json.dumps(ending))
    writer.close()
    return Recording(folder)


def _process(rank: int, ranks: int, hostile: str) -> ProcessRecord:
    facts = ProcessFacts(
        framework="transformers",
        framework_version="5.23.0",
        arguments={"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "run_name": hostile or "plain"},
        device=f"cuda:{rank}",
        device_name="NVIDIA A100-SXM4-80GB",
        cores=16,
        threads=8,
        model=hostile or "DistilBertForSequenceClassification",
        parameters=66_955_010,
        optimizer="AdamW",
        loader_workers=0,
        autocast_dtype=None,
        environment={"OMP_NUM_THREADS": "8"},
        expected_steps=250,
    )
    return ProcessRecord(
        process=rank, pid=1000 + rank, started_ns=START_NS, rank=rank, world_size=ranks, facts=facts.to_json()
    )


def _steps(
    rank: int, waits: np.ndarray, late: np.ndarray, computing: np.ndarray, random: np.random.Generator
) -> list[StepRecord]:
    """Ranks end their steps together: who has its data sooner waits inside the backward pass."""
    steps = len(waits)
    evaluation = np.where(np.arange(steps) % 100 == 99, 900.0, 0.0)
    ends_ns = START_NS + ((waits + late + computing + evaluation).cumsum() * 1e6).astype(int)
    return [
        StepRecord(
            process=rank,
            step=step,
            ended_ns=int(ends_ns[step]),
            loss=2.0 / (1 + step / 50) + 0.05 * float(random.standard_normal()),
            learning_rate=1e-4,
            samples=32,
            tokens=1900,
            padded_tokens=2800,
            micro_batches=4,
            wall_s=(waits[step] + late[step] + computing[step] + evaluation[step]) / 1e3,
            input_ms=waits[step],
            copy_ms=1.0,
            forward_ms=computing[step] * 0.33,
            backward_ms=computing[step] * 0.6 + late[step],
            backward_cpu_ms=computing[step] * 0.6,
            communication_ms=0.0,
            optimizer_ms=computing[step] * 0.07 - 1.0,
            logging_ms=0.0,
            evaluation_ms=evaluation[step],
            checkpoint_ms=0.0,
            other_ms=0.0,
            syncs=2,
            sync_ms=1.5,
            allocated_bytes=3 << 30,
            reserved_bytes=6 << 30,
            peak_bytes=(5 << 30) + (step << 20),
            rss_bytes=(2 << 30) + (step << 18),
        )
        for step in range(steps)
    ]


def _surroundings(steps: int, devices: int, random: np.random.Generator, hostile: str) -> list:
    rows: list = [
        EventRecord(
            process=0,
            at_ns=START_NS + step * 212_000_000,
            kind="evaluation",
            step=step,
            duration_ms=900.0,
            detail=json.dumps({"note": hostile}),
        )
        for step in range(99, steps, 100)
    ]
    rows += [
        ReadingRecord(
            at_ns=START_NS + second * 1_000_000_000,
            device=device,
            name="host" if device < 0 else hostile or "NVIDIA A100-SXM4-80GB",
            busy_percent=float(random.uniform(40, 70)),
            memory_used_bytes=(7 << 30) + (second << 20),
            memory_total_bytes=80 << 30,
            power_w=210.0 + float(random.normal(0, 10)),
            power_limit_w=400.0,
            clock_hz=1.41e9,
            temperature_c=51.0,
            throttle_reasons="sw_power_cap" if device == 0 and 20 < second < 24 else "",
        )
        for second in range(max(2, steps // 5))
        for device in range(-1, devices)
    ]
    rows.append(WorkerRecord(process=0, pid=2000, batches=500, fetch_ms=44_000.0, fetch_cpu_ms=43_000.0))
    frames = [f"/home/someone/{hostile or 'train.py'}:41 __getitem__", "/usr/lib/torch/fetch.py:52 fetch"]
    rows.append(StackRecord(process=0, phase="input", frames=json.dumps(frames), samples=430))
    rows.append(StackRecord(process=0, phase="forward", frames='["model.py:10 forward"]', samples=200))
    return rows
