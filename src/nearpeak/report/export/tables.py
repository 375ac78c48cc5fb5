"""Tables of a recording as CSV or Parquet: all columns as they were recorded, the unknown empty."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from nearpeak.errors import SettingError, StorageError
from nearpeak.recording import Recording
from nearpeak.recording.columns import unpack_columns
from nearpeak.recording.schema import TABLES, ReadingBlock, ReadingRecord, Row

__all__ = ["EXPORTED", "write_csv", "write_parquet"]

EXPORTED: dict[str, type[Row]] = {kind.table: kind for kind in TABLES if kind is not ReadingBlock}
"""By name; packed readings come with the others, in `readings`."""
ROWS_AT_ONCE = 20_000


def write_csv(recording: Recording, path: Path, table: str = "steps") -> int:
    """Write one table with a line of names; returns how many rows it has."""
    count = 0
    kinds = _columns(recording, table)
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(kinds)
            for rows in _rows(recording, table, list(kinds)):
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
    kinds = _columns(recording, table)
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    count = 0
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for rows in _rows(recording, table, list(kinds)):
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
    """SQLite keeps a NaN as a word; figures of packed readings are whole where they can be."""
    if cell is None:
        return None
    return {"float": float, "int": int, "str": str}[kind](cell)  # pyright: ignore[reportArgumentType]


def _kind(table: str) -> type[Row]:
    if table not in EXPORTED:
        raise SettingError(f"table {table!r}: must be one of {', '.join(EXPORTED)}.")
    return EXPORTED[table]


def _columns(recording: Recording, table: str) -> dict[str, str]:
    """Names and types; those of packed readings are found in them."""
    kinds = {each.name: str(each.type).split(" ")[0] for each in fields(_kind(table))}  # type: ignore[arg-type]
    if table != ReadingRecord.table:
        return kinds
    blocks = recording.reading_blocks()
    if blocks:
        kinds["device"] = "str"  # `0:2` is a slice of a device, `host` the host
    for block in blocks:
        for name, cells in unpack_columns(block.data).items():
            found = next((_type_name(cell) for cell in cells if cell is not None), None)
            if found is not None and name != "device":
                kinds[name] = found if kinds.get(name) in (None, found) else _wider(kinds[name], found)
    return kinds


def _type_name(cell: object) -> str:
    return "str" if isinstance(cell, str) else "float" if isinstance(cell, float) else "int"


def _wider(one: str, other: str) -> str:
    return "str" if "str" in (one, other) else "float"


def _rows(recording: Recording, table: str, names: list[str]) -> Iterator[list[tuple]]:
    """In the order of the key, some at a time; a column that this recording lacks is unknown."""
    kind = _kind(table)
    own = set(kind.columns())
    with recording._open() as database:
        present = {row[1] for row in database.execute(f"PRAGMA table_info({table})")} & own
        if present:
            wanted = ", ".join(name if name in present else "NULL" for name in names)
            cursor = database.execute(f"SELECT {wanted} FROM {table} ORDER BY {', '.join(kind.key)}")
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield rows
    if table == ReadingRecord.table:
        yield from (_unpacked(block, names) for block in recording.reading_blocks())


def _unpacked(block: ReadingBlock, names: list[str]) -> list[tuple]:
    cells = unpack_columns(block.data)
    missing = [None] * block.readings
    columns = [[block.device] * block.readings if name == "device" else cells.get(name, missing) for name in names]
    return list(zip(*columns, strict=True))
