"""Readings in a recording: packed block by block as they come, and read back as they were.

A block holds the readings of one device over some minutes, a column a figure. The block that still grows is written
again every few seconds, so that a process that is killed loses no more than these.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from nearpeak.errors import DataError
from nearpeak.hardware.host_reading import HOST_KEY, HostReading
from nearpeak.hardware.reading import FIGURES, Device, ProcessUse, Reading, Why
from nearpeak.recording import Ending, ReadingBlock, Recording, RowWriter, RunInfo, describe_run
from nearpeak.recording.columns import Cell, pack_columns, unpack_columns
from nearpeak.recording.run_info import Outcome, now_text
from nearpeak.recording.writer import clear_way

__all__ = ["ReadingWriter", "load_devices", "load_host", "load_readings", "pack_readings", "unpack_readings"]

BLOCK_READINGS = 900
FLUSH_S = 10.0
PROCESSES_EVERY_NS = 10_000_000_000
"""Lists of processes are long and change little: one is kept this often, and whenever one begins or ends."""
OTHER = "other."
_STRUCTURED = ("missing", "other", "processes", "throttle_reasons")
_PLAIN = tuple(each.name for each in fields(Reading) if each.name not in _STRUCTURED)


class ReadingWriter:
    """Writes readings into a recording; use it as a context manager, from one thread at a time."""

    def __init__(
        self,
        folder: str | Path,
        devices: Iterable[Device] = (),
        *,
        run: RunInfo | None = None,
        force: bool = False,
        flush_s: float = FLUSH_S,
        keep_all_processes: bool = False,
    ) -> None:
        """Begin a recording of readings alone. `run` says where they come from: for a log its machine and time.

        Lists of processes are thinned out unless `keep_all_processes` asks for every one.
        """
        self.folder = Path(folder)
        clear_way(self.folder, force=force)
        self._rows = RowWriter(self.folder)
        self._rows.write_info("run", _json(run or describe_run()))
        self._open: dict[str, list[Reading | HostReading]] = {}
        self._processes: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._keep_all_processes = keep_all_processes
        self._devices: dict[str, Device] = {}
        self._flush_s, self._flushed_s, self._closed = flush_s, time.monotonic(), False
        for device in devices:
            self.add_device(device)

    def add_device(self, device: Device) -> None:
        """Say which device the readings of its key are of."""
        if self._devices.get(device.key) != device:
            self._devices[device.key] = device
            self._rows.write_info("devices", _json(list(self._devices.values())))

    def add(self, reading: Reading | HostReading) -> None:
        """Take one reading; each device's in the order of time."""
        key = reading.key
        kept = self._thinned(reading) if isinstance(reading, Reading) else reading
        block = self._open.setdefault(key, [])
        block.append(kept)
        if len(block) >= BLOCK_READINGS:
            self._rows.write([_block(key, block)])
            del self._open[key]
        if time.monotonic() - self._flushed_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        self._rows.write([_block(key, block) for key, block in self._open.items() if block])
        self._flushed_s = time.monotonic()

    def close(self, outcome: Outcome = "finished") -> None:
        """Write the rest and how the recording ended; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        self._rows.write_info("ending", _json(Ending(now_text(), outcome, 0)))
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close("finished")
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _thinned(self, reading: Reading) -> Reading:
        """Without its list of processes, if one of the same processes was kept a moment ago."""
        if not reading.processes or self._keep_all_processes:
            return reading
        pids = tuple(sorted(use.pid for use in reading.processes))
        kept_ns, kept = self._processes.get(reading.key, (0, ()))
        if pids == kept and reading.at_ns - kept_ns < PROCESSES_EVERY_NS:
            return replace(reading, processes=None)
        self._processes[reading.key] = reading.at_ns, pids
        return reading


def _block(key: str, readings: list[Reading | HostReading]) -> ReadingBlock:
    first, last = readings[0].at_ns, readings[-1].at_ns
    return ReadingBlock(device=key, first_ns=first, last_ns=last, readings=len(readings), data=pack_readings(readings))


def pack_readings(readings: list[Reading | HostReading]) -> bytes:
    """Readings of one device as columns."""
    rows = [_cells(reading) for reading in readings]
    names = dict.fromkeys(name for row in rows for name in row)
    return pack_columns({name: [row.get(name) for row in rows] for name in names})


def _cells(reading: Reading | HostReading) -> dict[str, Cell]:
    if isinstance(reading, HostReading):
        return reading.to_cells()
    cells: dict[str, Cell] = {}
    for name in _PLAIN:
        value = getattr(reading, name)
        if value is not None:
            cells[name] = value
    if reading.throttle_reasons is not None:
        cells["throttle_reasons"] = ",".join(reading.throttle_reasons)
    if reading.missing:
        cells["missing"] = _json(reading.missing)
    if reading.processes is not None:
        cells["processes"] = _json(reading.processes)
    return cells | {OTHER + name: value for name, value in reading.other.items()}


def unpack_readings(data: bytes) -> list[Reading]:
    """Readings of one device as they were packed."""
    columns = unpack_columns(data)
    names = list(columns)
    return [_reading(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _reading(cells: dict[str, Any]) -> Reading:
    """One row; figures that another version has and this one does not are kept among the others."""
    known: dict[str, Any] = {}
    other = {name.removeprefix(OTHER): cell for name, cell in cells.items() if cell is not None and _is_other(name)}
    for name in _PLAIN:
        cell = cells.get(name)
        if cell is not None:
            known[name] = cell
    reasons, missing, processes = (cells.get(name) for name in ("throttle_reasons", "missing", "processes"))
    try:
        return Reading(
            **known,
            other=other,
            throttle_reasons=None if reasons is None else tuple(filter(None, reasons.split(","))),
            missing={} if missing is None else _decode_missing(missing),
            processes=None if processes is None else msgspec.json.decode(processes, type=tuple[ProcessUse, ...]),
        )
    except (TypeError, msgspec.DecodeError) as error:
        raise DataError(f"A reading of this recording is damaged: {error}.") from None


@lru_cache(maxsize=64)
def _decode_missing(text: str) -> dict[str, Why]:
    """The same few in all readings of a device."""
    return msgspec.json.decode(text)


def _is_other(name: str) -> bool:
    return name.startswith(OTHER) or (name not in FIGURES and name not in _PLAIN and name not in _STRUCTURED)


def load_devices(recording: Recording) -> list[Device]:
    """The devices whose readings it holds, as far as they were described."""
    text = recording.info("devices")
    if text is None:
        return []
    try:
        return msgspec.json.decode(text, type=list[Device])
    except msgspec.DecodeError as error:
        raise DataError(f"{recording.folder}: its list of devices is damaged: {error}.") from None


def load_readings(recording: Recording, *, from_ns: int = 0) -> Iterator[Reading]:
    """Readings of all devices in time, also those that a watched run kept as rows; the host's are `load_host`'s."""
    blocks = [block for block in recording.reading_blocks(from_ns=from_ns) if block.device != HOST_KEY]
    found = [reading for block in blocks for reading in unpack_readings(block.data) if reading.at_ns >= from_ns]
    found += [_from_row(row) for row in recording.readings if row.device >= 0 and row.at_ns >= from_ns]
    yield from sorted(found, key=lambda reading: (reading.at_ns, reading.device, reading.mig or -1))


def load_host(recording: Recording, *, from_ns: int = 0) -> Iterator[HostReading]:
    """Readings of the host in time."""
    for block in recording.reading_blocks(from_ns=from_ns):
        if block.device == HOST_KEY:
            columns = unpack_columns(block.data)
            rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            yield from (each for each in map(HostReading.from_cells, rows) if each.at_ns >= from_ns)


def _from_row(row: Any) -> Reading:
    shared = {each.name for each in fields(row)} & set(FIGURES) - {"throttle_reasons"}
    reasons = row.throttle_reasons
    return Reading(
        at_ns=row.at_ns,
        device=row.device,
        throttle_reasons=None if reasons is None else tuple(filter(None, reasons.split(","))),
        **{name: getattr(row, name) for name in shared},
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
