"""`nvidia-smi --query-…=… --format=csv`: any fields, with or without units and header, as written or saved again."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.names import DEVICE_NAMES, MASK_NAMES, PART_NAMES, normalised, place_of, reason_of
from nearpeak.hardware.logs.parts import LogEvent, Parts, process_use
from nearpeak.hardware.logs.times import parse_time
from nearpeak.hardware.logs.values import parse_cell

__all__ = ["Header", "read_header", "take_csv", "take_rows"]

_COLUMN = re.compile(r"^([A-Za-z][\w./ ()-]*?)\s*(?:\[([^\]]+)\])?$")
_TIMES = ("timestamp", "time", "date", "datetime")
_INDICES = ("index", "gpu", "gpu_index", "device")
_MEMORY = ("used_gpu_memory", "used_memory")
_ACCOUNTED = ("max_memory_usage", "gpu_utilization", "gpu_util", "mem_utilization", "mem_util")
_OTHERS = {"count", "pid", "process_name", "hostname", *_TIMES, *_INDICES, *_MEMORY, *_ACCOUNTED, "memory", "graphics"}
_LEAST_KNOWN = 0.3
"""Share of a header's columns that must have a name we know; newer drivers have fields that we do not."""


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of a CSV."""

    names: tuple[str, ...]
    units: tuple[str | None, ...]
    delimiter: str = ","

    @property
    def plain(self) -> tuple[str, ...]:
        """Normalised names."""
        return tuple(map(normalised, self.names))

    @property
    def decimal_comma(self) -> bool:
        """Whoever separates cells by something else than commas keeps these for decimals."""
        return self.delimiter != ","

    @property
    def kind(self) -> str:
        """What a row is about: a device, a process on it, or an event."""
        names = set(self.plain)
        if "pid" in names:
            return "process" if names & set(_MEMORY) else "accounted_process"
        if "retired_pages.address" in names or "retired_pages.cause" in names:
            return "retired_page"
        return "supported_clocks" if {"memory", "graphics"} <= names else "device"


def read_header(line: str, below: str = "") -> Header | None:
    """The header that this line is, or None; `below` is the next line."""
    if len(line) > 100_000 or (not line[:1].isalpha() and line[:1] not in "\"'["):
        return None
    delimiter = max(",;\t", key=line.count)
    cells = [cell.strip().strip('"') for cell in line.split(delimiter)]
    columns = [_COLUMN.match(cell) for cell in cells]
    names = tuple(match[1] if match else cell[:100] for match, cell in zip(columns, cells, strict=True))
    known = sum(map(_is_known, map(normalised, names)))
    odd = columns.count(None)
    if known == 0 or known < _LEAST_KNOWN * len(names) or (odd and (known < 2 or odd * 4 > len(names))):
        return None
    if len(names) == 1 and parse_cell(below).number is None and parse_time(below) is None:
        return None
    return Header(names, tuple(match[2] if match else None for match in columns), delimiter)


def _is_known(name: str) -> bool:
    return (
        name in _OTHERS
        or name in DEVICE_NAMES
        or name in MASK_NAMES
        or name in PART_NAMES
        or place_of(name) is not None
        or reason_of(name) is not None
        or name.startswith(("ecc.", "pcie.", "power.", "clocks", "utilization.", "vgpu_", "fabric.", "remapped_rows."))
    )


def header_of_command(command: str) -> Header | None:
    """The columns that `--query-gpu=a,b` of this command asked for, for output without a header."""
    match = re.search(r"--query-[a-z-]+[= ]([\w.,]+)", command)
    if match is None or "noheader" not in command:
        return None
    names = tuple(name for name in match[1].split(",") if name)
    return Header(names, (None,) * len(names)) if names else None


def take_csv(lines: list[str], start: int, parts: Parts) -> int:
    """Read a header and the rows below it."""
    header = read_header(lines[start], lines[start + 1] if start + 1 < len(lines) else "")
    if header is None:
        return start
    return take_rows(lines, start + 1, header, parts)


def take_rows(lines: list[str], start: int, header: Header, parts: Parts) -> int:
    """Read rows until something else comes; blank lines and headers that say the same are passed over."""
    rows = _Rows(header, parts)
    position = start
    while position < len(lines):
        line = lines[position]
        if line.strip() and not rows.take(line, position + 1):
            again = read_header(line, lines[position + 1] if position + 1 < len(lines) else "")
            if again is None or again != header:
                break
        position += 1
    rows.finish()
    return position


class _Rows:
    """Reads the rows below one header."""

    def __init__(self, header: Header, parts: Parts) -> None:
        self._header, self._parts, self._kind = header, parts, header.kind
        self._plain = header.plain
        self._times = next((i for i, name in enumerate(self._plain) if name in _TIMES), None)
        self._pairs = self._times is not None and self._plain[self._times : self._times + 2] == ("date", "time")
        self._index = next((i for i, name in enumerate(self._plain) if name in _INDICES), None)
        self._day_first = False
        self._group: Draft | None = None
        self._seen: set[tuple[str, ...]] = set()
        self._step = 0

    def take(self, line: str, number: int) -> bool:
        """Whether this was a row; a cut one counts, and is recorded."""
        cells, comma = self._split(line)
        if len(cells) != len(self._header.names):
            return self._take_cut(line, cells, number)
        moment = self._moment(cells)
        if self._times is not None and moment is None and parse_cell(cells[self._times]).missing is None:
            return False
        if self._kind == "device":
            self._parts.add(self._to_draft(cells, moment, comma))
        elif self._kind == "process":
            self._take_process(cells, moment)
        else:
            values = dict(zip(self._header.names, (cell.strip() for cell in cells), strict=True))
            self._parts.events.append(LogEvent(kind=self._kind, line=number, at_ns=moment, values=values))
        return True

    def _split(self, line: str) -> tuple[list[str], bool]:
        """Cells, and whether decimals have commas. A comma in a cell has no blank behind it, or belongs to a name."""
        header, wanted = self._header, len(self._header.names)
        cells = next(csv.reader([line], delimiter=header.delimiter, skipinitialspace=True)) if '"' in line else None
        if cells is None:
            cells = line.split(header.delimiter)
        if len(cells) == wanted + 1 and not cells[-1].strip():  # a separator at the end of the line
            cells.pop()
        if len(cells) <= wanted or header.delimiter != ",":
            return cells, header.decimal_comma
        apart = re.split(r",\s+", line)
        if len(apart) == wanted:
            return apart, True
        name = next((i for i, column in enumerate(self._plain) if column in ("process_name", "name")), None)
        if name is not None and len(apart) > wanted:
            surplus = len(apart) - wanted
            return [*apart[:name], ", ".join(apart[name : name + surplus + 1]), *apart[name + surplus + 1 :]], False
        return cells, False

    def _take_cut(self, line: str, cells: list[str], number: int) -> bool:
        """A line that was cut, as by a full disk or a kill: what is whole of it is read, the rest is recorded."""
        if self._times != 0 or len(cells) < 2 or len(cells) > len(self._header.names):
            return False
        moment = parse_time(cells[0])
        if moment is None:
            return False
        if self._kind == "device" and len(cells) > 2:
            missing = len(self._header.names) - len(cells) + 1
            whole = [*cells[:-1], *([None] * missing)]
            self._parts.add(self._to_draft(whole, moment, False))
        self._parts.events.append(LogEvent(kind="cut_line", line=number, at_ns=moment, values={"text": line[:1000]}))
        return True

    def _moment(self, cells: list[str]) -> int | None:
        if self._times is None:
            return None
        text = cells[self._times]
        if self._pairs:
            text = f"{text.strip()} {cells[self._times + 1].strip()}"
        elif re.match(r"\s*(1[3-9]|2\d|3[01])/\d{1,2}/\d{4}", text):
            self._day_first = True
        return parse_time(text, day_first=self._day_first)

    def _to_draft(self, cells: list[str | None] | list[str], moment: int | None, comma: bool) -> Draft:
        draft = Draft("nvidia-smi --query-gpu", at_ns=moment)
        for column, cell in enumerate(cells):
            if cell is None or (column == self._times and moment is not None):
                continue
            if self._pairs and self._times is not None and column == self._times + 1:
                continue
            if column == self._index and cell.strip().isdecimal() and len(cell) < 9:
                draft.index = int(cell)
                continue
            draft.put(self._header.names[column], cell, self._header.units[column], decimal_comma=comma)
        draft.step = self._round(draft)
        return draft

    def _round(self, draft: Draft) -> int:
        """Of a log without times: a device that comes again begins a new round."""
        key = tuple(str(value) for value in draft.identity().values())
        if key in self._seen:
            self._seen.clear()
            self._step += 1
        self._seen.add(key)
        return self._step

    def _take_process(self, cells: list[str], moment: int | None) -> None:
        """Rows of one device and moment are one reading."""
        named = dict(zip(self._plain, cells, strict=True))
        fresh = Draft("nvidia-smi --query-compute-apps", at_ns=moment, processes=[])
        own = {"pid", "process_name", "name", "used_gpu_memory", "used_memory", *_TIMES}
        rest = [i for i, name in enumerate(self._plain) if name not in own]
        for column in rest:
            if column == self._index and cells[column].strip().isdecimal() and len(cells[column]) < 9:
                fresh.index = int(cells[column])
            elif self._plain[column] in DEVICE_NAMES:
                fresh.put(self._header.names[column], cells[column])
        group = self._group
        if group is None or (group.at_ns, group.identity()) != (moment, fresh.identity()):
            self.finish()
            group = self._group = fresh
        self._add_process(group, named)
        for column in rest:
            if column != self._index and self._plain[column] not in DEVICE_NAMES:
                group.put(f"process {named['pid'].strip()} {self._header.names[column]}", cells[column])

    def _add_process(self, group: Draft, named: dict[str, str]) -> None:
        which = next(name for name in _MEMORY if name in named)
        unit = self._header.units[self._plain.index(which)]
        name = named.get("process_name", named.get("name"))
        use = process_use(named["pid"], kind="c", name=name, memory=named[which], memory_unit=unit)
        if use is not None and group.processes is not None:
            group.processes.append(use)
        else:
            group.put(f"process {named['pid'].strip()}", ", ".join(named.values()))

    def finish(self) -> None:
        """The last group of processes."""
        if self._group is not None:
            self._parts.add(self._group)
            self._group = None
