from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nearpeak.errors import DataError, SettingError, UnsupportedError
from nearpeak.job import JobRecord
from nearpeak.plan import Plan
from nearpeak.reason import Reason
from nearpeak.recording import (
    EventRecord,
    ProcessRecord,
    ReadingRecord,
    Recording,
    RecordingWriter,
    RowWriter,
    StackRecord,
    StepRecord,
    WorkerRecord,
    describe_run,
)
from nearpeak.recording.schema import Row

JOB = JobRecord(
    samples=100,
    global_batch=8,
    optimizer_steps=13,
    formula="1 epochs × 100 samples ÷ global batch 8 = 13 optimizer steps",
    epochs=1.0,
    remainder="short",
    order="shuffled",
    seed=0,
    normaliser="samples",
    clip_norm=None,
    model="Linear",
    parameters=12,
    optimizer="make_optimizer",
    schedule=None,
)


@dataclass
class Step:
    index: int
    loss: float | None = 0.5
    learning_rate: float | None = 1e-3
    grad_norm: float | None = None
    samples: int | None = 8
    tokens: int | None = 100
    padded_tokens: int | None = 128
    micro_batches: int | None = 2
    wall_s: float | None = 0.25


def test_what_was_written_is_read(tmp_path: Path) -> None:
    plan = Plan(precision="bf16", reasons=(Reason("precision=bf16", "the CPU has it", {"speedup": 1.8}),))
    run = describe_run(torch_version="2.13.0", device="cpu")
    with RecordingWriter(tmp_path / "a" / "b", run, plan=plan, job=JOB) as writer:
        for index in range(3):
            writer.add(Step(index, loss=0.1 * index))
    recording = Recording(tmp_path / "a" / "b")
    assert (recording.run, recording.plan, recording.job) == (run, plan, JOB)
    assert [(step.step, step.loss) for step in recording.steps()] == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert recording.steps()[0].grad_norm is None
    assert recording.steps()[0].padded_tokens == 128
    assert recording.ending is not None
    assert (recording.ending.outcome, recording.ending.lost_steps) == ("finished", 0)


def test_not_a_number_is_not_the_unknown(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, describe_run()) as writer:
        writer.add(Step(0, loss=math.nan, grad_norm=math.inf))
        writer.add(Step(1, loss=None))
    bad, unknown = Recording(tmp_path).steps()
    assert bad.loss is not None
    assert math.isnan(bad.loss)
    assert bad.grad_norm == math.inf
    assert unknown.loss is None


def test_readable_while_written_and_losses_are_read_late(tmp_path: Path) -> None:
    reads: list[int] = []

    class OnDevice(Step):
        @property  # pyright: ignore[reportIncompatibleVariableOverride]
        def loss(self) -> float:
            reads.append(self.index)
            return 1.0

        @loss.setter
        def loss(self, value: float) -> None: ...

    with RecordingWriter(tmp_path, describe_run(), batch_rows=4, flush_s=1e9) as writer:
        recording = Recording(tmp_path)
        for index in range(3):
            writer.add(OnDevice(index))
        assert (reads, recording.steps()) == ([], [])
        writer.add(OnDevice(3))
        assert reads == [0, 1, 2, 3]
        assert [step.step for step in recording.steps(first=2)] == [2, 3]
        assert [step.step for step in recording.steps(first=1, limit=1)] == [1]
        assert recording.ending is None
    assert recording.ending is not None


def test_time_flushes_too(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, describe_run(), flush_s=0.0) as writer:
        writer.add(Step(0))
        assert len(Recording(tmp_path).steps()) == 1


def test_a_step_done_again_after_a_restart_replaces_the_first(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, describe_run()) as writer:
        writer.add(Step(0, loss=1.0))
        writer.add(Step(0, loss=2.0))
    assert [step.loss for step in Recording(tmp_path).steps()] == [2.0]


@pytest.mark.parametrize(("error", "outcome"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_the_ending_says_how(tmp_path: Path, error: type[BaseException], outcome: str) -> None:
    def train() -> None:
        with RecordingWriter(tmp_path, describe_run()) as writer:
            writer.add(Step(0))
            raise error

    with pytest.raises(error):
        train()
    ending = Recording(tmp_path).ending
    assert ending is not None
    assert ending.outcome == outcome
    assert len(Recording(tmp_path).steps()) == 1


def test_never_overwrites_without_force(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, describe_run(), plan=Plan()) as writer:
        writer.add(Step(0))
    with pytest.raises(SettingError, match="--force"):
        RecordingWriter(tmp_path, describe_run())
    with RecordingWriter(tmp_path, describe_run(), force=True):
        pass
    assert Recording(tmp_path).steps() == []
    assert Recording(tmp_path).plan is None


def test_a_failing_disk_costs_rows_and_one_warning_not_the_run(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, describe_run(), batch_rows=1) as writer:
        writer.add(Step(0))
        with sqlite3.connect(tmp_path / "recording.sqlite") as other:
            other.execute("ALTER TABLE steps RENAME TO gone")
        with pytest.warns(RuntimeWarning, match="Training goes on"):
            writer.add(Step(1))
        writer.add(Step(2))  # a second warning would be an error
        other.execute("ALTER TABLE gone RENAME TO steps")
        other.close()
        writer.add(Step(3))
    recording = Recording(tmp_path)
    assert [step.step for step in recording.steps()] == [0, 3]
    assert recording.ending is not None
    assert recording.ending.lost_steps == 2


WRITE_FOR_EVER = """
import itertools, sys
from types import SimpleNamespace
from nearpeak.recording import RecordingWriter, describe_run
from nearpeak.recording.writer import SOURCED
writer = RecordingWriter(sys.argv[1], describe_run(), batch_rows=8)
for index in itertools.count():
    writer.add(SimpleNamespace(index=index, **dict.fromkeys(SOURCED, index)))
"""


def test_rows_survive_kill_9(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)])
    try:
        seen = _wait_for_rows(tmp_path, 100)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    recording = Recording(tmp_path)
    steps = recording.steps()
    assert len(steps) >= seen
    assert [step.step for step in steps] == list(range(len(steps)))
    assert recording.ending is None


def _wait_for_rows(folder: Path, count: int) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            seen = len(Recording(folder).steps())
        except DataError:
            seen = 0
        if seen >= count:
            return seen
        time.sleep(0.05)
    raise AssertionError("the writer wrote nothing")


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, describe_run(), batch_rows=1)
    writer.close()
    writer.close()
    with pytest.raises(SettingError, match="closed"):
        writer.add(Step(0))


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no recording.sqlite"):
        Recording(tmp_path)
    (tmp_path / "recording.sqlite").write_bytes(b"hello, I am not a database at all" * 100)
    with pytest.raises(DataError, match="cannot be read as a recording"):
        Recording(tmp_path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, describe_run()).close()
    with sqlite3.connect(tmp_path / "recording.sqlite") as database:
        database.execute("UPDATE info SET value = '1000' WHERE name = 'schema'")
    database.close()
    with pytest.raises(UnsupportedError, match="schema 1000"):
        Recording(tmp_path)


def test_several_processes_write_rows_of_all_tables_into_one_recording(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, describe_run()).close()
    writers = [RowWriter(tmp_path) for _ in range(2)]
    for process, writer in enumerate(writers):
        assert writer.write(rows_of(process))
    for writer in writers:
        writer.close()
    recording = Recording(tmp_path)
    assert [each.rank for each in recording.processes] == [0, 1]
    assert [(step.process, step.input_ms) for step in recording.steps(process=1)] == [(1, 1.5)]
    assert len(recording.steps()) == len(recording.workers) == len(recording.stacks) == len(recording.events) == 2
    assert recording.workers[0].fetch_ms == 3.0
    assert [reading.busy_percent for reading in recording.readings] == [None, None]


def rows_of(process: int) -> list[Row]:
    return [
        ProcessRecord(process=process, pid=10 + process, started_ns=1, rank=process),
        StepRecord(process=process, step=0, input_ms=1.5),
        WorkerRecord(process=process, pid=99, batches=4, fetch_ms=3.0),
        StackRecord(process=process, phase="input", frames="[]", samples=2),
        EventRecord(process=process, at_ns=5, kind="evaluation"),
        ReadingRecord(at_ns=process, device=0),
    ]


def test_a_recording_with_other_columns_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, describe_run()).close()
    with sqlite3.connect(tmp_path / "recording.sqlite") as database:
        database.execute("DROP TABLE steps")
        database.execute("DROP TABLE stacks")
        database.execute("CREATE TABLE steps (process INTEGER, step INTEGER, loss REAL, colour TEXT)")
        database.execute("INSERT INTO steps VALUES (0, 7, 0.5, 'red')")
    database.close()
    step = Recording(tmp_path).steps()[0]
    assert (step.step, step.loss, step.input_ms) == (7, 0.5, None)
    assert Recording(tmp_path).stacks == []


def test_rows_need_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, nearpeak.recording.rows\n"
        "print([name for name in ('msgspec', 'numpy', 'torch', 'rich', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
