"""`Recording`: one run on disk, as a folder that can be read while the run goes on and after it was killed.

    plan.json          the plan that was executed
    job.json           the job, as far as it has plain values
    recording.sqlite   table `info` (name, JSON value) and table `steps` (one wide row an optimizer step)

The database is in WAL mode: readers never hold the writer up, and rows written before a `kill -9` stay. Writing must
never end a training: from the first row on, a disk that fails costs rows and one warning, not the run.
"""

from __future__ import annotations

import platform
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec

from nearpeak.errors import DataError, SettingError, UnsupportedError
from nearpeak.job import JobRecord
from nearpeak.plan import Plan, load_plan, save_plan

__all__ = ["Ending", "Recording", "RecordingWriter", "RunInfo", "StepRecord", "StepSource", "describe_run"]

SCHEMA = 1
DATABASE, PLAN, JOB = "recording.sqlite", "plan.json", "job.json"
Outcome = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Where and when a run was made."""

    started_at: str
    """UTC, ISO 8601."""
    nearpeak_version: str
    python_version: str
    system: str
    host: str
    command: tuple[str, ...]
    torch_version: str | None = None
    device: str | None = None
    """Name of the device that trained, as its driver reports it."""
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step. What was not measured is None."""

    step: int
    loss: float | None
    learning_rate: float | None
    grad_norm: float | None
    samples: int | None
    tokens: int | None
    padded_tokens: int | None
    """Tokens computed, padding included; `tokens` counts the real ones."""
    micro_batches: int | None
    wall_s: float | None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. A recording without one was killed, or still runs."""

    at: str
    outcome: Outcome
    lost_steps: int
    """Steps that the disk refused."""


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


COLUMNS = tuple(field.name for field in fields(StepRecord))
_MEASURED = COLUMNS[1:]
_REAL = ("loss", "learning_rate", "grad_norm", "wall_s")
_CREATE = f"""
CREATE TABLE info (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    {", ".join(f"{name} {'REAL' if name in _REAL else 'INTEGER'}" for name in _MEASURED)}
);
"""
_INSERT = f"INSERT OR REPLACE INTO steps ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def describe_run(*, torch_version: str | None = None, device: str | None = None, ranks: int = 1) -> RunInfo:
    """The facts of this process, now."""
    from nearpeak import __version__

    return RunInfo(
        started_at=_now(),
        nearpeak_version=__version__,
        python_version=platform.python_version(),
        system=platform.platform(),
        host=platform.node(),
        command=tuple(sys.argv),
        torch_version=torch_version,
        device=device,
        ranks=ranks,
    )


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
        batch_rows: int = 64,
        flush_s: float = 1.0,
    ) -> None:
        if batch_rows < 1:
            raise SettingError(f"RecordingWriter(batch_rows={batch_rows}): must be at least 1.")
        self.folder = Path(folder)
        self.lost_steps = 0
        self._batch_rows, self._flush_s = batch_rows, flush_s
        self._pending: list[StepSource] = []
        self._last_flush_s = time.monotonic()
        _clear_way(self.folder, force=force)
        _write_documents(self.folder, plan, job)
        self._database = _create_database(self.folder / DATABASE, run)

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
            self._write(_INSERT, rows)
        self._last_flush_s = time.monotonic()

    def close(self, outcome: Outcome = "finished") -> None:
        """Write the rest and how the run ended; a second call does nothing."""
        if self._database is None:
            return
        self.flush()
        ending = Ending(_now(), outcome, self.lost_steps)
        self._write("INSERT OR REPLACE INTO info VALUES (?, ?)", [("ending", _to_json(ending))])
        self._database.close()
        self._database = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close("finished")
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """The boundary: a disk that fails must not end the training. Warns once, counts what is lost."""
        if self._database is None:
            raise SettingError(f"{self.folder}: this recording is closed; nothing can be added to it.")
        try:
            with self._database:
                self._database.executemany(statement, rows)
        except sqlite3.Error as error:
            if self.lost_steps == 0:
                warnings.warn(
                    f"{self.folder / DATABASE}: {error}. Training goes on; steps are missing from the recording.",
                    RuntimeWarning,
                    stacklevel=3,
                )
            self.lost_steps += len(rows)


class Recording:
    """Reads a recording, also one that is being written or whose run was killed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / DATABASE).is_file():
            raise DataError(f"{self.folder}: not a recording: it has no {DATABASE}.")
        self._info = self._read_info()
        self.run: RunInfo = self._decode("run", RunInfo)

    @property
    def plan(self) -> Plan | None:
        """The plan that was executed; None if the run had none."""
        path = self.folder / PLAN
        return load_plan(path) if path.exists() else None

    @property
    def job(self) -> JobRecord | None:
        """What was learned; None if it is not known."""
        path = self.folder / JOB
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobRecord)
        except msgspec.DecodeError as error:
            raise DataError(f"{path}: not the record of a job: {error}.") from None

    @property
    def ending(self) -> Ending | None:
        """How the run ended, read anew each time; None while it runs, and for good if it was killed."""
        self._info = self._read_info()
        return self._decode("ending", Ending) if "ending" in self._info else None

    def steps(self, first: int = 0, limit: int | None = None) -> list[StepRecord]:
        """Steps from number `first` on, in order; ``steps(first=last + 1)`` follows a run that goes on."""
        query = f"SELECT {', '.join(COLUMNS)} FROM steps WHERE step >= ? ORDER BY step LIMIT ?"
        with self._open() as database:
            rows = database.execute(query, (first, -1 if limit is None else limit)).fetchall()
        return [_record_of(row) for row in rows]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / DATABASE
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
                yield database
        except sqlite3.Error as error:
            raise DataError(f"{path}: cannot be read as a recording: {error}.") from None

    def _read_info(self) -> dict[str, str]:
        with self._open() as database:
            info = dict(database.execute("SELECT name, value FROM info").fetchall())
        if int(info.get("schema", 0)) > SCHEMA:
            raise UnsupportedError(
                f"{self.folder}: recorded with schema {info['schema']}, this nearpeak reads up to {SCHEMA}. Upgrade it."
            )
        return info

    def _decode(self, name: str, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(self._info[name], type=kind)
        except (KeyError, msgspec.DecodeError) as error:
            raise DataError(f"{self.folder / DATABASE}: its entry {name!r} is missing or broken: {error}.") from None


def _clear_way(folder: Path, *, force: bool) -> None:
    present = [path for path in folder.glob("recording.sqlite*") if path.is_file()]
    if present and not force:
        raise SettingError(f"{folder}: holds a recording already. Choose another folder, or use --force to replace it.")
    for path in (*present, folder / PLAN, folder / JOB):
        path.unlink(missing_ok=True)


def _write_documents(folder: Path, plan: Plan | None, job: JobRecord | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        save_plan(plan, folder / PLAN)
    if job is not None:
        (folder / JOB).write_bytes(msgspec.json.format(msgspec.json.encode(job), indent=2))


def _create_database(path: Path, run: RunInfo) -> sqlite3.Connection | None:
    # A reader can hold WAL up only for moments; a training must not wait longer than that for its own record.
    database = sqlite3.connect(path, timeout=1.0)
    mode = database.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        warnings.warn(f"{path}: this file system has no WAL (mode {mode}); readers may hold the run up.", stacklevel=4)
    # In WAL mode NORMAL loses nothing when the process is killed, only what a power failure catches.
    database.execute("PRAGMA synchronous=NORMAL")
    database.executescript(_CREATE)
    with database:
        database.executemany("INSERT INTO info VALUES (?, ?)", [("schema", str(SCHEMA)), ("run", _to_json(run))])
    return database


def _row_of(step: StepSource) -> tuple[Any, ...]:
    return (step.index, *(_to_cell(getattr(step, name)) for name in _MEASURED))


def _to_cell(value: float | None) -> float | str | None:
    """SQLite turns NaN into NULL; a loss that is NaN is not one that was not measured."""
    return "nan" if value is not None and value != value else value


def _record_of(row: tuple[Any, ...]) -> StepRecord:
    cells = zip(COLUMNS, row, strict=True)
    values: dict[str, Any] = {name: float(cell) if isinstance(cell, str) else cell for name, cell in cells}
    return StepRecord(**values)


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
