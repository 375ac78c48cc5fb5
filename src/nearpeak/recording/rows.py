"""Writing rows into the database of a recording. Standard library only: the probe does it in the user's processes."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterable
from pathlib import Path

from nearpeak.recording.schema import SCHEMA, Row, StepRecord, create_statements

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
        try:
            with self._database:
                for kind, members in by_kind.items():
                    self._database.executemany(kind.insert_statement(), [row.cells() for row in members])
        except sqlite3.Error as error:
            self._note_fault(error, len(by_kind.get(StepRecord, ())))
            return False
        return True

    def write_info(self, name: str, value: str) -> bool:
        """One JSON value of the whole recording."""
        try:
            with self._database:
                self._database.execute("INSERT OR REPLACE INTO info VALUES (?, ?)", (name, value))
        except sqlite3.Error as error:
            self._note_fault(error, 0)
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
