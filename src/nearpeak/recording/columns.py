"""Columns of readings, packed exactly: what is read back is what was written, to the last bit.

Figures that a driver gives are integers in disguise (milliwatts as watts, tenths of a percent), change little from one
reading to the next, and many never change at all. So a column is kept as a constant, as differences of integers in
the fewest bytes, as a table of its few values, or, where nothing else is exact, as it is; and all of it is compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from nearpeak.errors import DataError, SettingError

__all__ = ["Cell", "pack_columns", "unpack_columns"]

Cell: TypeAlias = int | float | str | bool | None
"""What a column holds."""

LEVEL = 6
MOST_DECIMALS = 6
FEW_VALUES = 64
"""A column of no more different values is kept as a table and one byte a reading."""
EXACT = 2**52
"""Scaled figures below it are exact as integers."""
LARGEST = 2**62
"""Differences of larger integers could overflow."""


class Packed(msgspec.Struct, array_like=True, omit_defaults=True):
    """One column; which of its parts are used depends on `kind`."""

    kind: str
    """`c` constant, `i` integers, `f` decimals as integers, `t` table, `r` floats as they are, `o` anything."""
    value: Any = None
    """The constant, the table, or what differences are multiplied by."""
    start: int = 0
    width: str = ""
    """numpy's name of the type of the differences."""
    data: bytes = b""
    present: bytes = b""
    """One bit a reading; empty where none is missing."""


def pack_columns(columns: Mapping[str, Sequence[Cell]]) -> bytes:
    """Pack columns of equal length."""
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise SettingError(f"pack_columns: columns have different lengths {sorted(lengths)}; give one value a reading.")
    packed = {name: _pack(column) for name, column in columns.items()}
    return zlib.compress(msgspec.msgpack.encode([lengths.pop() if lengths else 0, packed]), LEVEL)


def unpack_columns(data: bytes) -> dict[str, list[Cell]]:
    """Columns as they were packed."""
    try:
        count, packed = msgspec.msgpack.decode(zlib.decompress(data), type=tuple[int, dict[str, Packed]])
        return {name: _unpack(column, count) for name, column in packed.items()}
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, IndexError, KeyError) as error:
        raise DataError(f"A block of readings is damaged: {error}.") from None


def _pack(column: Sequence[Cell]) -> Packed:
    kinds = {type(value) for value in column}
    first = column[0] if column else None
    if len(kinds) == 1 and first == first and all(value == first for value in column):
        return Packed("c", first)
    known = [value for value in column if value is not None]
    present = _mask(column) if len(known) < len(column) else b""
    kinds.discard(type(None))
    if kinds == {int} and all(-LARGEST < value < LARGEST for value in known):  # type: ignore[operator]
        return _pack_integers("i", 1, known, present)
    if kinds == {float}:
        return _pack_floats(known, present)
    return _pack_others(known, present)


def _pack_floats(known: list[Any], present: bytes) -> Packed:
    values = np.array(known, dtype=np.float64)
    for decimals in range(MOST_DECIMALS + 1):
        scaled = np.round(values * 10.0**decimals)
        if not np.all(np.abs(scaled) < EXACT):  # NaN and infinities too
            break
        # A negative zero equals zero and is not the same.
        if np.array_equal((scaled / 10.0**decimals).view(np.int64), values.view(np.int64)):
            return _pack_integers("f", decimals, scaled.astype(np.int64), present)
    return Packed("r", data=values.tobytes(), present=present)


def _pack_integers(kind: str, value: int, known: Any, present: bytes) -> Packed:
    """First value, then differences, divided by what they have in common."""
    values = np.asarray(known, dtype=np.int64)
    differences = np.diff(values)
    common = max(1, int(np.gcd.reduce(differences))) if len(differences) else 1
    steps = differences // common
    width = next(t for t in ("<i1", "<i2", "<i4", "<i8") if _fits(steps, np.iinfo(t)))
    unit = [value, common] if kind == "f" else common
    return Packed(kind, unit, int(values[0]), width, _by_place(steps.astype(width)), present)


def _by_place(steps: np.ndarray) -> bytes:
    """All lowest bytes, then all the next: high bytes are mostly alike and compress to nothing."""
    return steps.view(np.uint8).reshape(len(steps), steps.itemsize).T.tobytes()


def _from_place(data: bytes, width: str) -> np.ndarray:
    size = np.dtype(width).itemsize
    together = np.frombuffer(data, dtype=np.uint8).reshape(size, -1).T
    return np.ascontiguousarray(together).view(width).reshape(-1).astype(np.int64)


def _fits(steps: np.ndarray, limits: np.iinfo) -> bool:
    return len(steps) == 0 or bool(steps.min() >= limits.min and steps.max() <= limits.max)


def _pack_others(known: list[Any], present: bytes) -> Packed:
    table = list(dict.fromkeys((type(value).__name__, value) for value in known))
    if len(table) > FEW_VALUES:
        return Packed("o", known, present=present)
    place = {entry: position for position, entry in enumerate(table)}
    data = bytes(place[type(value).__name__, value] for value in known)
    return Packed("t", [value for _, value in table], data=data, present=present)


def _mask(column: Sequence[Cell]) -> bytes:
    return np.packbits([value is not None for value in column]).tobytes()


def _unpack(column: Packed, count: int) -> list[Cell]:
    if column.kind == "c":
        return [column.value] * count
    known = _known(column)
    if not column.present:
        values = known
    else:
        bits = np.unpackbits(np.frombuffer(column.present, dtype=np.uint8), count=count)
        following = iter(known)
        values = [next(following) if bit else None for bit in bits.tolist()]
    if len(values) != count:
        raise ValueError(f"{len(values)} values where {count} were recorded")
    return values


def _known(column: Packed) -> list[Any]:
    if column.kind == "r":
        return np.frombuffer(column.data, dtype="<f8").tolist()
    if column.kind == "t":
        return [column.value[place] for place in column.data]
    if column.kind == "o":
        return list(column.value)
    steps = _from_place(column.data, column.width)
    if column.kind == "i":
        return (np.concatenate(([0], np.cumsum(steps * column.value))) + column.start).tolist()
    decimals, common = column.value
    values = np.concatenate(([0], np.cumsum(steps * common))) + column.start
    return (values / 10.0**decimals).tolist()
