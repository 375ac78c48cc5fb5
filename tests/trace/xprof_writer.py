"""Writes small files as XProf does, for tests."""

from __future__ import annotations

from pathlib import Path

from wire_writer import Value, message, packed

PART_FIELDS = {"unknown": 3, "wait_input": 11, "to_device": 12, "output": 5, "compute": 6, "device_to_device": 7}
PART_FIELDS |= {"collectives": 13, "host_compute": 8, "launch": 9, "compile": 10}


def analysis(steps: list[dict[str, float]], *, input_percent: float = 60.0) -> bytes:
    """An InputPipelineAnalysisResult: parts of each step by name, in ms."""
    details: list[Value] = []
    for number, parts in enumerate(steps):
        fields: dict[int, Value] = {1: number, 2: sum(parts.values())}
        fields |= {PART_FIELDS[name]: value for name, value in parts.items()}
        details.append(packed("PerGenericStepDetails", message(fields)))
    stage = message({1: "Iterator::Model::Map", 2: 9, 3: 30.0, 5: 25.0, 7: "Preprocessing"})
    verdict = message({2: packed("BottleneckAnalysis", message({1: "host", 2: "…"}))})
    return message({3: message({1: input_percent}), 4: details, 6: [stage], 7: verdict, 9: "GPU"})


def overview(steps: list[dict[str, float]]) -> bytes:
    """An OverviewPage around the same."""
    return message({2: analysis(steps), 3: message({2: 37.5})})


def op_stats() -> bytes:
    """A TfStatsDatabase with two operations."""
    ops: list[Value] = [
        message({1: 1, 2: "Device", 3: "Conv2D", 4: "model/conv", 5: 10, 6: 900.0, 8: 800.0}),
        message({1: 2, 2: "Host", 3: "Dataset", 4: "Iterator::Map", 5: 3, 6: 5000.0, 8: 4000.0}),
    ]
    return message({4: message({1: ops})})


def kernel_stats() -> bytes:
    """A KernelStatsDb with one kernel."""
    kernel = message({1: "volta_sgemm", 7: 5_000_000, 8: 10, 9: 20, 10: 0, 11: 1, 12: "model/dense", 13: 50})
    return message({1: [kernel]})


def write_run(folder: Path, hosts: tuple[str, ...] = ("worker-0",), **parts: float) -> list[Path]:
    """Files of a run: each host's overview, input pipeline, operations and kernels."""
    steps = [{**parts} for _ in range(3)]
    files: list[Path] = []
    for host in hosts:
        for tool, content in (
            ("overview_page", overview(steps)),
            ("input_pipeline", analysis(steps)),
            ("tensorflow_stats", op_stats()),
            ("kernel_stats", kernel_stats()),
        ):
            path = folder / f"{host}.{tool}.pb"
            path.write_bytes(content)
            files.append(path)
    return files
