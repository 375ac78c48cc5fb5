"""Which parts of a file have which format: each reader is offered the line at hand, and takes what is its own."""

from __future__ import annotations

from collections.abc import Callable

from nearpeak.hardware.logs.listing import take_context, take_list, take_message, take_time
from nearpeak.hardware.logs.monitor import take_monitor
from nearpeak.hardware.logs.parts import Parts, TextBlock
from nearpeak.hardware.logs.prometheus import take_exposition
from nearpeak.hardware.logs.query_csv import header_of_command, take_csv, take_rows
from nearpeak.hardware.logs.query_text import take_query
from nearpeak.hardware.logs.query_xml import take_xml
from nearpeak.hardware.logs.table import take_table

__all__ = ["scan"]

_READERS: tuple[Callable[[list[str], int, Parts], int], ...] = (
    take_xml,
    take_query,
    take_table,
    take_monitor,
    take_list,
    take_message,
    take_csv,
    take_time,
    take_exposition,
    take_context,
)


def scan(lines: list[str], parts: Parts) -> None:
    """Read all lines; what no reader takes is kept as text."""
    position = 0
    left: list[str] = []
    left_from, left_title = 0, ""
    while position < len(lines):
        if not lines[position].strip():
            position += 1
            continue
        begun, title = position, parts.title
        position = _offer(lines, position, parts)
        if left and (position > begun or title != left_title):
            parts.texts.append(TextBlock(left_title, left_from + 1, tuple(left)))
            left = []
        if position == begun:
            if not left:
                left_from, left_title = position, parts.title
            left.append(lines[position])
            position += 1
    if left:
        parts.texts.append(TextBlock(left_title, left_from + 1, tuple(left)))


def _offer(lines: list[str], position: int, parts: Parts) -> int:
    """Where to go on; the same position where nobody wants the line."""
    for reader in _READERS:
        after = reader(lines, position, parts)
        if after > position:
            return after
    header = header_of_command(parts.command) if parts.command else None
    if header is not None:
        return take_rows(lines, position, header, parts)
    return position
