"""Writes protobuf messages: the other side of `nearpeak.trace.wire`, for tests."""

from __future__ import annotations

import struct

Value = int | float | str | bytes | list["Value"]  # pyright: ignore[reportInvalidTypeForm]


def varint(value: int) -> bytes:
    """Seven bits a byte; a negative number takes ten."""
    value &= (1 << 64) - 1
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*octets, value))


def field(number: int, value: Value) -> bytes:
    """Whole numbers as varints, fractions as doubles, texts and messages with their length; a list repeats."""
    if isinstance(value, list):
        return b"".join(field(number, each) for each in value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    octets = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(octets)) + octets


def message(fields: dict[int, Value]) -> bytes:
    """Fields by number, in the order given."""
    return b"".join(field(number, value) for number, value in fields.items())


def packed(kind: str, content: bytes) -> bytes:
    """A `google.protobuf.Any`."""
    return message({1: f"type.googleapis.com/tensorflow.profiler.{kind}", 2: content})
