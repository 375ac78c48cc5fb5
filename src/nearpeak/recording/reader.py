"""Reading a recording, also one that is being written or whose run was killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nearpeak.errors import DataError, UnsupportedError
from nearpeak.job import JobRecord
from nearpeak.plan import Plan, load_plan
from nearpeak.recording.rows import DATABASE
from nearpeak.recording.run_info import Ending, RunInfo
from nearpeak.recording.schema import (
    SCHEMA,
    EventRecord,
    ProcessRecord,
    ReadingBlock,
    ReadingRecord,
    Row,
    StackRecord,
    StepRecord,
    WorkerRecord,
)
from nearpeak.recording.writer import JOB, PLAN

__all__ = ["Recording"]

R = TypeVar("R", bound=Row)


class Recording:
    """One run's folder. Everything is read anew each time, so that a run that goes on can be followed."""

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
        """How the run ended; None while it runs, and for good if it was killed."""
        self._info = self._read_info()
        return self._decode("ending", Ending) if "ending" in self._info else None

    @property
    def processes(self) -> list[ProcessRecord]:
        """Those that trained, by number."""
        return self._rows(ProcessRecord, "ORDER BY process")

    def steps(self, first: int = 0, limit: int | None = None, *, process: int | None = None) -> list[StepRecord]:
        """Steps from number `first` on, in order; ``steps(first=last + 1)`` follows a run that goes on."""
        whose = "" if process is None else "AND process = ?"
        arguments = (first, *(() if process is None else (process,)), -1 if limit is None else limit)
        return self._rows(StepRecord, f"WHERE step >= ? {whose} ORDER BY step, process LIMIT ?", *arguments)

    def latest_step(self) -> int | None:
        """Number of the newest step; None where there is none yet."""
        with self._open() as database:
            return database.execute("SELECT max(step) FROM steps").fetchone()[0]

    @property
    def workers(self) -> list[WorkerRecord]:
        """Loader workers, by process."""
        return self._rows(WorkerRecord, "ORDER BY process, pid")

    @property
    def stacks(self) -> list[StackRecord]:
        """Places in the code, those met most often first."""
        return self._rows(StackRecord, "ORDER BY samples DESC, frames")

    @property
    def events(self) -> list[EventRecord]:
        """In the order in which they happened."""
        return self._rows(EventRecord, "ORDER BY at_ns")

    @property
    def readings(self) -> list[ReadingRecord]:
        """Of devices and of the host, in time."""
        return self._rows(ReadingRecord, "ORDER BY at_ns, device")

    def reading_blocks(self, *, from_ns: int = 0) -> list[ReadingBlock]:
        """Packed readings, those that reach beyond `from_ns`; `hardware.reading_store` unpacks them."""
        return self._rows(ReadingBlock, "WHERE last_ns >= ? ORDER BY first_ns, device", from_ns)

    def info(self, name: str) -> str | None:
        """One JSON value of the whole recording, as it was written."""
        self._info = self._read_info()
        return self._info.get(name)

    def _rows(self, kind: type[R], rest: str, *arguments: Any) -> list[R]:
        with self._open() as database:
            try:
                cursor = database.execute(f"SELECT * FROM {kind.table} {rest}", arguments)
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # recorded by a version that did not have it
                    return []
                raise
            names = [column[0] for column in cursor.description]
            return [kind.from_cells(names, cells) for cells in cursor]

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
