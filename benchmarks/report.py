"""What a report costs: `python benchmarks/report.py` times it on runs of growing length, and weighs the page.

CPU seconds, so that a busy machine does not decide. The recordings are made up: a lognormal step time, an evaluation
now and then, phases, memory and a reading a second of one device and the host.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from _table import Target, finish, options, print_table

from nearpeak.diagnose.recorded import diagnose_recording
from nearpeak.recording import ProcessRecord, ReadingRecord, Recording, RowWriter, StepRecord, describe_run
from nearpeak.recording.writer import to_json
from nearpeak.report.html.run_page import run_page

START_NS = 1_700_000_000_000_000_000
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
MOST_BYTES, MOST_CPU_S = 1_000_000, 30.0
ROWS_AT_ONCE = 50_000


def record(folder: Path, steps: int) -> Recording:
    """A run of so many steps."""
    random = np.random.default_rng(0)
    walls_ms = 5 + random.lognormal(0, 0.3, steps)
    evaluated = np.arange(steps) % 5000 == 4999
    ends_ns = START_NS + ((walls_ms + 900 * evaluated).cumsum() * 1e6).astype(int)
    writer = RowWriter(folder)
    writer.write_info("run", to_json(describe_run(command=("python", "train.py"))))
    writer.write([ProcessRecord(process=0, pid=1, started_ns=START_NS, rank=0)])
    for first in range(0, steps, ROWS_AT_ONCE):
        rows = range(first, min(steps, first + ROWS_AT_ONCE))
        writer.write(step(i, float(walls_ms[i]), bool(evaluated[i]), int(ends_ns[i])) for i in rows)
    seconds = int((ends_ns[-1] - START_NS) / 1e9)
    writer.write(
        ReadingRecord(at_ns=START_NS + second * 10**9, device=device, busy_percent=50.0 + second % 7, power_w=200.0)
        for second in range(seconds)
        for device in (-1, 0)
    )
    writer.close()
    return Recording(folder)


def step(index: int, wall_ms: float, evaluated: bool, ended_ns: int) -> StepRecord:
    """One step, its phases summing to it."""
    return StepRecord(
        step=index,
        ended_ns=ended_ns,
        wall_s=(wall_ms + 900 * evaluated) / 1e3,
        loss=2.0 / (1 + index / 1000),
        samples=32,
        tokens=1000,
        padded_tokens=1300,
        input_ms=0.2 * wall_ms,
        copy_ms=0.0,
        forward_ms=0.3 * wall_ms,
        backward_ms=0.4 * wall_ms,
        communication_ms=0.0,
        optimizer_ms=0.1 * wall_ms,
        logging_ms=0.0,
        evaluation_ms=900.0 * evaluated,
        checkpoint_ms=0.0,
        other_ms=0.0,
        peak_bytes=10**9,
        allocated_bytes=8 * 10**8,
        rss_bytes=2 * 10**9 + index,
    )


def main() -> None:
    """Time and weigh."""
    arguments = options("What a report costs.").parse_args()
    rows, figures = [], {}
    for steps in LENGTHS[: 2 if arguments.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            recording = record(Path(folder), steps)
            begun_s = time.process_time()
            diagnosis = diagnose_recording(recording)
            diagnosed_s = time.process_time()
            page = run_page(recording, diagnosis).encode()
            drawn_s = time.process_time()
        figures[steps] = {
            "diagnose_cpu_s": diagnosed_s - begun_s,
            "page_cpu_s": drawn_s - diagnosed_s,
            "page_bytes": len(page),
        }
        rows.append(
            [f"{steps:,}", f"{diagnosed_s - begun_s:.2f}", f"{drawn_s - diagnosed_s:.2f}", f"{len(page) / 1e3:.0f}"]
        )
    print_table("A report of a run", ["steps", "judging, CPU s", "drawing, CPU s", "page, kB"], rows)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory, the making of the recording included: {peak_gb:.2f} GB")
    last = figures[max(figures)]
    targets = [
        Target("largest page, bytes", max(each["page_bytes"] for each in figures.values()), MOST_BYTES, at_most=True),
        Target("longest run, CPU s", last["diagnose_cpu_s"] + last["page_cpu_s"], MOST_CPU_S, at_most=True),
    ]
    finish(targets, {str(steps): each for steps, each in figures.items()}, arguments.json)


if __name__ == "__main__":
    main()
