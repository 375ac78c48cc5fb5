"""The tables of an Nsight Systems SQLite export, read as columns of whole numbers.

The schema changes with the version of the tool: tables are there or not, columns come and go. What is asked for and
missing reads as `MISSING`, and `Tables.problems` names it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError

__all__ = ["MISSING", "Tables", "open_export", "process_of", "thread_of"]

MISSING = -1
ROWS_AT_ONCE = 1 << 16
"""Python objects exist for so many rows at a time; the columns are numpy's."""
MOST_PARAMETERS = 900
"""SQLite's oldest limit on the values of one statement is 999."""
SIGNATURE = b"SQLite format 3\x00"
PROBABLE_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "StringIds", "META_DATA_EXPORT", "TARGET_INFO_GPU")

Ints = NDArray[np.int64]


@contextmanager
def open_export(path: Path) -> Iterator[Tables]:
    """The export, opened for reading only; anything SQLite cannot read is a `DataError`."""
    with path.open("rb") as file:
        if file.read(len(SIGNATURE)) != SIGNATURE:
            raise DataError(f"{path}: is no SQLite database, so no export of Nsight Systems.")
    connection = None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        yield Tables(path, connection)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: SQLite cannot read it ({error}); export it again with `nsys export`.") from error
    finally:
        if connection is not None:
            connection.close()


class Tables:
    """What the export holds; `problems` grows with what was asked for and is not there."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        """Reads the names of the tables."""
        self.path = path
        self.problems: list[str] = []
        self._connection = connection
        self._columns: dict[str, frozenset[str]] = {}
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.names = frozenset(str(name) for (name,) in found)
        if not self.names.intersection(PROBABLE_TABLES):
            raise DataError(f"{path}: is a SQLite database, but has no table of Nsight Systems.")

    def has(self, table: str) -> bool:
        return table in self.names

    def columns_of(self, table: str) -> frozenset[str]:
        """Names of a table's columns; none where the table is missing."""
        if table not in self._columns:
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})") if self.has(table) else ()
            self._columns[table] = frozenset(str(row[1]) for row in rows)
        return self._columns[table]

    def numbers(self, table: str, wanted: Sequence[str]) -> dict[str, Ints]:
        """The wanted columns of a table, row by row as stored; empty where there is no such table."""
        there = [name for name in wanted if name in self.columns_of(table)]
        parts = [np.zeros((0, len(there)), dtype=np.int64)]
        if there:
            parts += self._read(table, there)
        table_of_numbers = np.concatenate(parts)
        columns = {name: np.ascontiguousarray(table_of_numbers[:, i]) for i, name in enumerate(there)}
        absent = np.full(len(table_of_numbers), MISSING, dtype=np.int64)
        return {name: columns.get(name, absent) for name in wanted}

    def _read(self, table: str, there: list[str]) -> Iterator[Ints]:
        chosen = ", ".join(f"coalesce(CAST({_quoted(name)} AS INTEGER), {MISSING})" for name in there)
        cursor = self._connection.execute(f"SELECT {chosen} FROM {_quoted(table)}")
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield np.array(rows, dtype=np.int64)

    def rows(self, table: str, wanted: Sequence[str]) -> Iterator[tuple[object, ...]]:
        """The wanted columns as they are, for small tables and for texts; a missing column reads None."""
        there = self.columns_of(table)
        if self.has(table):
            chosen = ", ".join(_quoted(name) if name in there else "NULL" for name in wanted)
            yield from self._connection.execute(f"SELECT {chosen} FROM {_quoted(table)}")

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """The texts behind ids; ids without a text are left out."""
        if not {"id", "value"} <= self.columns_of("StringIds"):
            return {}
        found: dict[int, str] = {}
        wanted = sorted(set(ids))
        for begin in range(0, len(wanted), MOST_PARAMETERS):
            some = wanted[begin : begin + MOST_PARAMETERS]
            marks = ", ".join("?" * len(some))
            rows = self._connection.execute(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", some)
            found.update((int(key), str(value)) for key, value in rows if isinstance(key, int))
        return found

    def labels(self, table: str) -> dict[int, str]:
        """What the numbers of an ENUM table mean; empty in exports that are older than these tables."""
        rows = self.rows(table, ("id", "name", "label"))
        return {key: str(label or name or "") for key, name, label in rows if isinstance(key, int)}


def process_of(global_id: Ints) -> Ints:
    """Process number within a serialised global id: 8 bits hardware, 8 bits virtual machine, 24 process, 24 thread."""
    return (global_id >> 24) & 0xFFFFFF


def thread_of(global_id: Ints) -> Ints:
    """Thread number within a serialised global id."""
    return global_id & 0xFFFFFF


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
