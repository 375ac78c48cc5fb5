"""Columns of a recording's tables as arrays: a million steps in seconds, where a million row objects take minutes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import SettingError
from nearpeak.recording.reader import Recording
from nearpeak.recording.schema import Row

__all__ = ["read_columns"]

ROWS_AT_ONCE = 50_000


def read_columns(
    recording: Recording, kind: type[Row], names: Sequence[str], *, where: str = "1", arguments: Sequence[object] = ()
) -> dict[str, NDArray[np.float64]]:
    """Figures of a table in the order of its key; NaN is what was not measured, and what this recording lacks.

    `where` is SQL over the table's columns, with a `?` for each of `arguments`.
    """
    unknown = [name for name in names if name not in kind.columns()]
    if unknown:
        raise SettingError(
            f"read_columns: {kind.table} has no column {unknown[0]!r}; it has {', '.join(kind.columns())}."
        )
    with recording._open() as database:
        present = {row[1] for row in database.execute(f"PRAGMA table_info({kind.table})")}
        wanted = [name for name in names if name in present]
        rows: list[NDArray[np.float64]] = []
        if wanted:
            query = f"SELECT {', '.join(wanted)} FROM {kind.table} WHERE {where} ORDER BY {', '.join(kind.key)}"
            cursor = database.execute(query, tuple(arguments))
            while chunk := cursor.fetchmany(ROWS_AT_ONCE):
                rows.append(np.array(chunk, dtype=np.float64))
    table = np.concatenate(rows) if rows else np.empty((0, len(wanted)))
    columns = {name: table[:, position] for position, name in enumerate(wanted)}
    return {name: columns.get(name, np.full(len(table), np.nan)) for name in names}
