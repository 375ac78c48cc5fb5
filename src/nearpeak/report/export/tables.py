"""Tables of a recording as CSV or Parquet: all columns as they were recorded, the unknown empty."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from nearpeak.errors import SettingError, StorageError
from nearpeak.recording import Recording
from nearpeak.recording.schema import TABLES, ReadingBlock, Row

__all__ = ["EXPORTED", "write_csv", "write_parquet"]

EXPORTED: dict[str, type[Row]] = {kind.table: kind for kind in TABLES if kind is not ReadingBlock}
"""By name; packed readings have a form of their own."""
ROWS_AT_ONCE = 20_000


def write_csv(recording: Recording, path: Path, table: str = "steps") -> int:
    """Write one table with a line of names; returns how many rows it has."""
    count = 0
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_kind(table).columns())
            for rows in _rows(recording, table):
                writer.writerows(rows)
                count += len(rows)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}.") from None
    return count


def write_parquet(recording: Recording, path: Path, table: str = "steps") -> int:
    """Write one table, typed; needs pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    kinds = {each.name: str(each.type).split(" ")[0] for each in fields(_kind(table))}  # type: ignore[arg-type]
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    count = 0
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for rows in _rows(recording, table):
                columns = zip(*rows, strict=True)
                arrays = [
                    pa.array([_typed(cell, kinds[name]) for cell in column], schema.field(name).type)
                    for name, column in zip(kinds, columns, strict=True)
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                count += len(rows)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}.") from None
    return count


def _typed(cell: object, kind: str) -> object:
    """SQLite keeps a NaN as a word."""
    return float(cell) if kind == "float" and isinstance(cell, str) else cell


def _kind(table: str) -> type[Row]:
    if table not in EXPORTED:
        raise SettingError(f"table {table!r}: must be one of {', '.join(EXPORTED)}.")
    return EXPORTED[table]


def _rows(recording: Recording, table: str) -> Iterator[list[tuple]]:
    """In the order of the key, some at a time; a column that this recording lacks is unknown."""
    kind = _kind(table)
    with recording._open() as database:
        present = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        if not present:
            return
        wanted = ", ".join(name if name in present else "NULL" for name in kind.columns())
        cursor = database.execute(f"SELECT {wanted} FROM {table} ORDER BY {', '.join(kind.key)}")
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield rows
