"""A recording as event files of TensorBoard, a folder a rank.

Written here and not by TensorBoard's own package, which brings a web server, gRPC and protobuf along for a format of
forty lines: records of (length, checksum, payload, checksum), whose payload is one protobuf message of a step.
The form: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nearpeak.errors import SettingError, StorageError
from nearpeak.recording import PHASES, Recording
from nearpeak.report.run_columns import ProcessColumns, read_run

__all__ = ["crc32c", "write_tensorboard"]

MASK = 0xA282EAD8
POLYNOMIAL = 0x82F63B78
TAGS: dict[str, str] = {
    "wall_s": "step/seconds",
    "loss": "learning/loss",
    "learning_rate": "learning/rate",
    "grad_norm": "learning/gradient_norm",
    "loss_scale": "learning/loss_scale",
    "samples": "step/samples",
    "tokens": "step/tokens",
    "padded_tokens": "step/tokens_with_padding",
    "allocated_bytes": "memory/allocated_bytes",
    "reserved_bytes": "memory/reserved_bytes",
    "peak_bytes": "memory/peak_bytes",
    "rss_bytes": "memory/resident_bytes",
    **{f"{phase}_ms": f"phase_ms/{phase}" for phase in PHASES},
}


def write_tensorboard(recording: Recording, folder: Path, *, force: bool = False) -> int:
    """Write one event file a process; returns how many steps they hold."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"--tensorboard {folder}: is a file; TensorBoard reads folders.")
    if any(folder.glob("**/events.out.tfevents.*")) and not force:
        raise SettingError(f"--tensorboard {folder}: holds event files already; choose another or give --force.")
    run = read_run(recording)
    count = 0
    for process in run.processes:
        inner = folder if len(run.processes) == 1 else folder / process.name.replace(" ", "_")
        try:
            inner.mkdir(parents=True, exist_ok=True)
            for old in inner.glob("events.out.tfevents.*.nearpeak"):
                old.unlink()
            path = inner / f"events.out.tfevents.{process.record.started_ns // 10**9}.{os.uname().nodename}.nearpeak"
            with path.open("wb") as file:
                for record in _records(process):
                    file.write(record)
                    count += 1
        except OSError as error:
            raise StorageError(f"{inner}: cannot be written: {error.strerror or error}.") from None
    return max(0, count - len(run.processes))


# -- messages ----------------------------------------------------------------------------------------------------------


def _records(process: ProcessColumns) -> Iterator[bytes]:
    start_s = process.record.started_ns / 1e9
    yield _record(_double(1, start_s) + _bytes(3, b"brain.Event:2"))
    values = process.values
    known = [(column, tag.encode()) for column, tag in TAGS.items() if np.isfinite(values[column]).any()]
    for row in range(len(process)):
        ended_ns = values["ended_ns"][row]
        at_s = float(ended_ns) / 1e9 if np.isfinite(ended_ns) else start_s + float(process.x[row])
        scalars = b"".join(
            _scalar(tag, values[column][row]) for column, tag in known if np.isfinite(values[column][row])
        )
        yield _record(_double(1, at_s) + _varint(2 << 3) + _varint(int(values["step"][row])) + _bytes(5, scalars))


def _scalar(tag: bytes, value: float) -> bytes:
    """Summary.value: a tag and a simple value."""
    return _bytes(1, _bytes(1, tag) + _varint(2 << 3 | 5) + struct.pack("<f", value))


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum with Castagnoli's polynomial, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
