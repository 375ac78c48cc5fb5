"""The recording of a run of ours: its plan, its job, and a row an optimizer step."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from nearpeak.errors import SettingError
from nearpeak.job import JobRecord
from nearpeak.plan import Plan, save_plan
from nearpeak.recording.rows import RowWriter
from nearpeak.recording.run_info import Ending, Outcome, RunInfo, now_text
from nearpeak.recording.schema import StepRecord

__all__ = ["JOB", "PLAN", "RecordingWriter", "StepSource", "clear_way"]

PLAN, JOB = "plan.json", "job.json"


class StepSource(Protocol):
    """What a writer takes: `nearpeak.train.run.Step`, or anything with the same names.

    Read when the batch of rows is written, not when the step is added: a loss may still be on its way from the device.
    """

    @property
    def index(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def learning_rate(self) -> float | None: ...
    @property
    def grad_norm(self) -> float | None: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def tokens(self) -> int | None: ...
    @property
    def padded_tokens(self) -> int | None: ...
    @property
    def micro_batches(self) -> int | None: ...
    @property
    def wall_s(self) -> float | None: ...


SOURCED = ("loss", "learning_rate", "grad_norm", "samples", "tokens", "padded_tokens", "micro_batches", "wall_s")


class RecordingWriter:
    """Writes a recording while the run goes on, in batches of rows; use it as a context manager.

    Holds at most `batch_rows` steps, and none longer than `flush_s` once a later step is added.
    """

    def __init__(
        self,
        folder: str | Path,
        run: RunInfo,
        *,
        plan: Plan | None = None,
        job: JobRecord | None = None,
        force: bool = False,
        extend: bool = False,
        batch_rows: int = 64,
        flush_s: float = 1.0,
    ) -> None:
        if batch_rows < 1:
            raise SettingError(f"RecordingWriter(batch_rows={batch_rows}): must be at least 1.")
        self.folder = Path(folder)
        self._batch_rows, self._flush_s = batch_rows, flush_s
        self._pending: list[StepSource] = []
        self._last_flush_s = time.monotonic()
        if not extend:
            clear_way(self.folder, force=force)
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_documents(self.folder, plan, job)
        self._rows: RowWriter | None = RowWriter(self.folder)
        self._written = self._rows
        self._rows.write_info("run", to_json(run))

    @property
    def lost_steps(self) -> int:
        """Steps that the disk refused."""
        return self._written.lost_steps

    def add(self, step: StepSource) -> None:
        """Take one step; it reaches the disk with its batch."""
        self._pending.append(step)
        if len(self._pending) >= self._batch_rows or time.monotonic() - self._last_flush_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Write what is held. Reading the losses waits for the device."""
        rows = [_row_of(step) for step in self._pending]
        self._pending.clear()
        if rows:
            self._open.write(rows)
        self._last_flush_s = time.monotonic()

    def close(self, outcome: Outcome = "finished") -> None:
        """Write the rest and how the run ended; a second call does nothing."""
        if self._rows is None:
            return
        self.flush()
        self._rows.write_info("ending", to_json(Ending(now_text(), outcome, self.lost_steps)))
        self._rows.close()
        self._rows = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close("finished")
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    @property
    def _open(self) -> RowWriter:
        if self._rows is None:
            raise SettingError(f"{self.folder}: this recording is closed; nothing can be added to it.")
        return self._rows


def clear_way(folder: Path, *, force: bool) -> None:
    """Make room for a recording; one that is there is replaced only by force."""
    present = [path for path in folder.glob("recording.sqlite*") if path.is_file()]
    if present and not force:
        raise SettingError(f"{folder}: holds a recording already. Choose another folder, or use --force to replace it.")
    for path in (*present, folder / PLAN, folder / JOB):
        path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def _write_documents(folder: Path, plan: Plan | None, job: JobRecord | None) -> None:
    if plan is not None:
        save_plan(plan, folder / PLAN)
    if job is not None:
        (folder / JOB).write_bytes(msgspec.json.format(msgspec.json.encode(job), indent=2))


def _row_of(step: StepSource) -> StepRecord:
    return StepRecord(step=step.index, **{name: getattr(step, name) for name in SOURCED})


def to_json(value: Any) -> str:
    """For the `info` of a recording."""
    return msgspec.json.encode(value).decode()
