"""Writing rows into the database of a recording. Standard library only: the probe does it in the user's processes."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from nearpeak.recording.schema import SCHEMA, ProcessRecord, Row, StackRecord, StepRecord, create_statements

__all__ = ["DATABASE", "RowWriter"]

DATABASE = "recording.sqlite"
# A reader can hold WAL up only for moments; a training must not wait longer than that for its own record.
PATIENCE_S = 1.0


class RowWriter:
    """One process's access to the database of a recording. A disk that fails costs rows and one warning, no more."""

    def __init__(self, folder: str | Path, *, patience_s: float = PATIENCE_S, warn: bool = True) -> None:
        """Opens the database, and makes it if it is not there. May be used from one thread at a time."""
        self.path = Path(folder) / DATABASE
        self.lost_steps = 0
        self.fault: str | None = None
        """The first refusal of the disk."""
        self._warn = warn
        self._database = sqlite3.connect(self.path, timeout=patience_s, check_same_thread=False)
        mode = self._database.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal" and warn:
            warnings.warn(
                f"{self.path}: this file system has no WAL (mode {mode}); readers may hold the run up.", stacklevel=3
            )
        # In WAL mode NORMAL loses nothing when the process is killed, only what a power failure catches.
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(create_statements())
        self._database.execute("INSERT OR IGNORE INTO info VALUES ('schema', ?)", (str(SCHEMA),))
        self._database.commit()

    def write(self, rows: Iterable[Row]) -> bool:
        """Write rows of any tables, replacing those with the same key; False if the disk refused them."""
        by_kind: dict[type[Row], list[Row]] = {}
        for row in rows:
            by_kind.setdefault(type(row), []).append(row)

        def insert(database: sqlite3.Connection) -> None:
            for kind, members in by_kind.items():
                database.executemany(kind.insert_statement(), [row.cells() for row in members])

        return self._try(insert, len(by_kind.get(StepRecord, ())))

    def write_info(self, name: str, value: str) -> bool:
        """One JSON value of the whole recording."""
        statement = "INSERT OR REPLACE INTO info VALUES (?, ?)"
        return self._try(lambda database: database.execute(statement, (name, value)), 0)

    def claim(self, process: ProcessRecord) -> int | None:
        """Enter a process under a number that no other has: its rank if that is free. None if the disk refused."""
        number: int | None = None

        def enter(database: sqlite3.Connection) -> None:
            nonlocal number
            database.execute("BEGIN IMMEDIATE")  # two ranks must not read the same numbers
            taken = {row[0] for row in database.execute("SELECT process FROM processes")}
            wanted = process.process
            chosen = wanted if wanted not in taken else max(taken) + 1
            database.execute(ProcessRecord.insert_statement(), replace(process, process=chosen).cells())
            number = chosen

        return number if self._try(enter, 0) else None

    def number_of(self, pid: int, host: str | None = None) -> int | None:
        """Under which number the newest process with this pid stands; None where it has not trained yet."""
        try:
            found = self._database.execute(
                "SELECT process FROM processes WHERE pid = ? AND host IS ? ORDER BY started_ns DESC LIMIT 1",
                (pid, host),
            ).fetchone()
        except sqlite3.Error as error:
            self._note_fault(error, 0)
            return None
        return None if found is None else int(found[0])

    def count_places(self, rows: Iterable[StackRecord]) -> bool:
        """Add to the counts that are there: several processes count the same places."""
        statement = StackRecord.insert_statement().replace("INSERT OR REPLACE", "INSERT") + (
            " ON CONFLICT (process, phase, frames) DO UPDATE SET samples = samples + excluded.samples,"
            " total_ms = CASE WHEN excluded.total_ms IS NULL THEN total_ms"
            " ELSE coalesce(total_ms, 0) + excluded.total_ms END"
        )
        cells = [row.cells() for row in rows]
        return self._try(lambda database: database.executemany(statement, cells), 0)

    def _try(self, act: Callable[[sqlite3.Connection], object], steps: int) -> bool:
        try:
            with self._database:
                act(self._database)
        except sqlite3.Error as error:
            self._note_fault(error, steps)
            return False
        return True

    def close(self) -> None:
        self._database.close()

    def _note_fault(self, error: sqlite3.Error, steps: int) -> None:
        """The boundary: a disk that fails must not end the training. Warns once, counts what is lost."""
        self.lost_steps += steps
        if self.fault is None:
            self.fault = str(error)
            if self._warn:
                warnings.warn(
                    f"{self.path}: {error}. Training goes on; steps are missing from the recording.",
                    RuntimeWarning,
                    stacklevel=5,
                )
