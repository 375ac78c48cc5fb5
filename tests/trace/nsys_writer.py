"""Writes small exports as Nsight Systems does, for tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, value INTEGER, bytes INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER, returnValue INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, totalMemory INTEGER, computeMajor INTEGER, computeMinor INTEGER, "
    "smCount INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
}
OLD_KERNEL = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, demangledName INT"
NAMES = ("gemm_kernel", "ncclDevKernel_AllReduce_Sum_f32", "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020")
NAMES += ("cudaDeviceSynchronize_v3020", "train_step", "multi_tensor_apply_kernel<Adam>", "softmax_backward")


def global_pid(process: int) -> int:
    return 1 << 48 | process << 24


def write_export(
    path: Path,
    *,
    processes: int = 2,
    steps: int = 4,
    without: tuple[str, ...] = (),
    old: bool = False,
    more_kernels: int = 0,
) -> Path:
    """Processes with 10 ms steps: a pageable copy of 1 ms, a kernel of 4 ms, an exchange of 2 ms, a wait for input."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    for table, columns in SCHEMA.items():
        if table not in without:
            kernel = old and table == "CUPTI_ACTIVITY_KIND_KERNEL"
            database.execute(f"CREATE TABLE {table} ({OLD_KERNEL if kernel else columns})")
    if "StringIds" not in without:
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
    for process in range(processes):
        for step in range(steps):
            _write_step(database, without, process, step, old)
            _write_small_kernels(database, process, step, more_kernels)
    if "TARGET_INFO_GPU" not in without:
        rows = [(device, "NVIDIA A100-SXM4-40GB", 42_949_672_960, 8, 0, 108) for device in range(processes)]
        database.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    return path


def _write_step(database: sqlite3.Connection, without: tuple[str, ...], process: int, step: int, old: bool) -> None:
    pid, tid = global_pid(process + 500), global_pid(process + 500) | process + 500
    begin, first = 1_000_000_000 + step * 10_000_000, process * 1000 + step * 10
    calls = [
        (2_000_000, 2_050_000, first, 3),
        (2_100_000, 2_110_000, first + 1, 2),
        (2_200_000, 2_210_000, first + 2, 2),
    ]
    kernels = [(3_100_000, 7_100_000, first + 1, 0), (7_200_000, 9_200_000, first + 2, 1)]
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in without:
        for start, end, correlation, name in [*calls, (9_000_000, 9_250_000, -1, 4)]:
            row = (begin + start, begin + end, 0, tid, correlation, name, 0)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in without:
        for start, end, correlation, name in kernels:
            whose = (name,) if old else (pid, name, name)
            row = (begin + start, begin + end, process, 1, 7, correlation, *whose)
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(row))})", row)
    if "CUPTI_ACTIVITY_KIND_MEMCPY" not in without:
        row = (begin + 2_050_000, begin + 3_050_000, process, 1, 7, first, pid, 1 << 20, 1, 0, 2)
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({', '.join('?' * len(row))})", row)
    if "NVTX_EVENTS" not in without:
        ranges = [(0, 9_900_000, f"iteration {step}", None), (100_000, 1_900_000, "DataLoader.__next__", None)]
        for start, end, text, text_id in [*ranges, (2_000_000, 9_300_000, None, 5)]:
            row = (begin + start, begin + end, 59, text, tid, text_id)
            database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)


def _write_small_kernels(database: sqlite3.Connection, process: int, step: int, count: int) -> None:
    """At the end of a step: one kernel of the update and others of the backward pass, as if of one CUDA graph."""
    begin = 1_000_000_000 + step * 10_000_000 + 9_300_000
    for number in range(count):
        name = 6 if number == 0 else 7
        start = begin + 50_000 * number
        row = (
            start,
            start + 40_000,
            process,
            1,
            7,
            process * 1000 + step * 10 + 1,
            global_pid(process + 500),
            name,
            name,
        )
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(row))})", row)
