"""CSV of nvidia-smi without header and without the command that made it: columns are told by their units."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from nearpeak.hardware.logs.parts import Parts
from nearpeak.hardware.logs.query_csv import Header, take_rows
from nearpeak.hardware.logs.times import parse_time
from nearpeak.hardware.logs.values import parse_cell

__all__ = ["take_headless"]

_LOOKED_AT = 200
_MOSTLY = 0.8
"""Of the lines: some may be cut, or messages."""
_PATTERNS = (
    ("name", re.compile(r"(NVIDIA|GeForce|Tesla|Quadro|AMD|GRID)\b.*")),
    ("uuid", re.compile(r"(GPU|MIG)-[0-9a-fA-F-]+")),
    ("pci.bus_id", re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")),
    ("pstate", re.compile(r"P\d{1,2}")),
)
_IN_ORDER = {
    # Quantity → what its columns are taken as, in the order in which they come.
    "percent": ("utilization.gpu", "utilization.memory"),
    "watt": ("power.draw", "power.limit"),
}
Column = Sequence[str]


def take_headless(lines: list[str], parts: Parts) -> bool:
    """Read a whole file of such rows; False where they cannot be told."""
    rows = [line for line in lines if line.strip()]
    cells = [[cell.strip() for cell in line.split(",")] for line in rows[:_LOOKED_AT]]
    if not cells:
        return False
    width, often = Counter(map(len, cells)).most_common(1)[0]
    if width < 2 or often < _MOSTLY * len(cells):
        return False
    names = _names([[row[i] for row in cells if len(row) == width] for i in range(width)])
    if not {"utilization.gpu", "memory.used", "power.draw"} & set(names):
        return False
    parts.note(f"The log has no header: by units and form its columns were taken as {', '.join(names)}.")
    header = Header(tuple(names), (None,) * width)
    position = 0
    while position < len(lines):
        position = max(take_rows(lines, position, header, parts), position + 1)
    return bool(parts.drafts)


def _names(columns: list[Column]) -> list[str]:
    """What no unit or form tells is numbered."""
    names = [_by_form(column) for column in columns]
    quantities = [_quantity(column) for column in columns]
    for quantity, wanted in _IN_ORDER.items():
        for position, name in zip((i for i, each in enumerate(quantities) if each == quantity), wanted, strict=False):
            names[position] = names[position] or name
    for position, name in _memories({i: columns[i] for i, each in enumerate(quantities) if each == "byte"}).items():
        names[position] = name
    clocks = [i for i, each in enumerate(quantities) if each == "hertz"]
    if len(clocks) == 1:
        names[clocks[0]] = "clocks.sm"
    _find_index(columns, names)
    return [name or f"column {number}" for number, name in enumerate(names, 1)]


def _by_form(column: Column) -> str | None:
    if _most(column, lambda cell: parse_time(cell) is not None and ":" in cell):
        return "timestamp"
    for name, form in _PATTERNS:
        if _most(column, lambda cell, form=form: form.fullmatch(cell) is not None):
            return name
    return None


def _quantity(column: Column) -> str | None:
    """Of the cells that say anything."""
    known = [cell.quantity for cell in map(parse_cell, column) if cell.missing is None]
    if not known:
        return None
    quantity, often = Counter(known).most_common(1)[0]
    return quantity if often >= _MOSTLY * len(known) else None


def _memories(columns: dict[int, Column]) -> dict[int, str]:
    """One is what is used; of two or three the one that never changes and is never passed is the total."""
    values = {i: [parse_cell(cell).si or 0.0 for cell in column] for i, column in columns.items()}
    if len(values) == 1:
        return {next(iter(values)): "memory.used"}
    whole = [i for i, each in values.items() if len(set(each)) == 1 and all(max(v) <= each[0] for v in values.values())]
    rest = [i for i in values if i not in whole]
    if len(whole) != 1 or len(rest) not in (1, 2):
        return {}
    if len(rest) == 1:
        return {whole[0]: "memory.total", rest[0]: "memory.used"}
    return {whole[0]: "memory.total", rest[0]: "memory.used", rest[1]: "memory.free"}


def _find_index(columns: list[Column], names: list[str | None]) -> None:
    """Small whole numbers in the first column, or behind the time."""
    for position in range(min(2, len(columns))):
        small = _most(columns[position], lambda cell: cell.isdecimal() and len(cell) < 3)
        if names[position] is None and small and (position == 0 or names[0] == "timestamp"):
            names[position] = "index"
            return


def _most(column: Column, holds: Callable[[str], bool]) -> bool:
    return bool(column) and sum(map(holds, column)) >= _MOSTLY * len(column)
