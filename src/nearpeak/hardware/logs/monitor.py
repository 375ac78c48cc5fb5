"""`nvidia-smi dmon` and `pmon`: a line a device or process, with any choice of columns, as text or CSV."""

from __future__ import annotations

import re

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.parts import Parts, process_use
from nearpeak.hardware.logs.times import parse_time
from nearpeak.hardware.logs.values import parse_cell

__all__ = ["take_monitor"]

_HEADER = re.compile(r"^#\s*(?:Date\b|Time\b|gpu\b)", re.IGNORECASE)
_UNITS = re.compile(r"^#\s*(?:YYYYMMDD|HH:MM:SS|Idx)\b", re.IGNORECASE)
_NO_UNIT = {"#", "-", "name", "idx", "c/g", "bool", "errs", "flag", ""}
_SHARES = {"sm": "busy_percent", "mem": "memory_busy_percent", "enc": "encoder_percent", "dec": "decoder_percent"}
_VIOLATIONS = {"pviol": "power_cap", "tviol": "thermal"}


def take_monitor(lines: list[str], start: int, parts: Parts) -> int:
    """Read a header and the lines below it."""
    if not _HEADER.match(lines[start]):
        return start
    columns = _split_header(lines[start])
    if "gpu" not in columns:
        return start
    units: list[str | None] = [None] * len(columns)
    position = start + 1
    if position < len(lines) and _UNITS.match(lines[position]):
        found = _split_header(lines[position])
        if len(found) == len(columns):
            units = [None if unit in _NO_UNIT else unit for unit in found]
        position += 1
    reader = _Reader(columns, units, "," in lines[start], parts)
    while position < len(lines) and reader.take(lines[position]):
        position += 1
    reader.finish()
    return position


def _split_header(line: str) -> list[str]:
    bare = line.lstrip("#").strip()
    cells = bare.split(",") if "," in bare else bare.split()
    return [cell.strip().lower() for cell in cells]


class _Reader:
    """Reads lines below one header; those of one device that follow each other are one reading of its processes."""

    def __init__(self, columns: list[str], units: list[str | None], comma: bool, parts: Parts) -> None:
        self._columns, self._units, self._comma, self._parts = columns, units, comma, parts
        self._gpu = columns.index("gpu")
        self._date = columns.index("date") if "date" in columns else None
        self._time = columns.index("time") if "time" in columns else None
        self._per_process = "pid" in columns
        self._group: Draft | None = None
        self._pids: set[str] = set()
        self._seen, self._step = _left_off(parts, self._source)

    @property
    def _source(self) -> str:
        return "nvidia-smi pmon" if self._per_process else "nvidia-smi dmon"

    def take(self, line: str) -> bool:
        """Whether the line belongs here."""
        cells = self._split(line)
        if len(cells) != len(self._columns) or not re.fullmatch(r"\d{1,4}", cells[self._gpu]):
            return False
        index, moment = int(cells[self._gpu]), self._moment(cells)
        if self._per_process:
            self._take_process(index, moment, cells)
        else:
            self._take_device(index, moment, cells)
        return True

    def _split(self, line: str) -> list[str]:
        if self._comma:
            return [cell.strip() for cell in line.split(",", len(self._columns) - 1)]
        if self._per_process:
            return [cell.strip() for cell in line.split(None, len(self._columns) - 1)]
        return line.split()

    def _moment(self, cells: list[str]) -> int | None:
        if self._time is None:
            return None
        if self._date is None:
            self._parts.note("The log gives times of day without a date; they are counted from 1970-01-01.")
            return parse_time(cells[self._time])
        return parse_time(f"{cells[self._date]} {cells[self._time]}")

    def _take_device(self, index: int, moment: int | None, cells: list[str]) -> None:
        if index in self._seen:
            self._seen.clear()
            self._step += 1
        self._seen.add(index)
        draft = Draft(self._source, at_ns=moment, index=index, step=self._step)
        for column, cell in zip(self._columns, cells, strict=True):
            if column not in ("gpu", "date", "time"):
                self._put(draft, column, cell)
        self._parts.add(draft)

    def _put(self, draft: Draft, column: str, cell: str) -> None:
        unit = self._units[self._columns.index(column)]
        draft.put(f"dmon.{column}", cell, unit)
        if column in _VIOLATIONS:  # share of time, or a flag, of clocks lowered for this reason
            value = parse_cell(cell).number
            if value is not None:
                draft.reasons[_VIOLATIONS[column]] = value > 0

    def _take_process(self, index: int, moment: int | None, cells: list[str]) -> None:
        named = dict(zip(self._columns, cells, strict=True))
        pid = named["pid"]
        group = self._group
        if group is None or group.index != index or group.at_ns != moment or pid in self._pids:
            self.finish()
            if index in self._seen:
                self._seen.clear()
                self._step += 1
            self._seen.add(index)
            group = self._group = Draft(self._source, at_ns=moment, index=index, step=self._step, processes=[])
            self._pids = set()
        self._pids.add(pid)
        if pid == "-":
            return
        memory = named.get("fb")
        unit = self._units[self._columns.index("fb")] if "fb" in self._columns else None
        use = process_use(
            pid,
            kind=named.get("type", ""),
            name=named.get("command", named.get("name")),
            memory=memory,
            memory_unit=unit,
            shares={figure: named[column] for column, figure in _SHARES.items() if column in named},
        )
        if use is not None and group.processes is not None:
            group.processes.append(use)
        kept = {"gpu", "date", "time", "pid", "type", "command", "name", "fb", *_SHARES}
        for column, cell in named.items():
            if use is None or column not in kept:
                group.put(f"process {pid} {column}", cell, self._units[self._columns.index(column)])

    def finish(self) -> None:
        """The last group, and the first round of what follows."""
        if self._group is not None:
            self._parts.add(self._group)
            self._group = None


def _left_off(parts: Parts, source: str) -> tuple[set[int], int]:
    """A header that is printed again goes on counting, in the middle of a round too; other output begins anew."""
    last = parts.drafts[-1] if parts.drafts else None
    if last is None or last.source != source or last.index is None:
        return set(), 0
    return {
        draft.index for draft in parts.drafts[-64:] if draft.step == last.step and draft.index is not None
    }, last.step
