"""Protobuf in columns, against messages whose fields are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_writer import field, message, varint

from nearpeak.errors import NearpeakError
from nearpeak.trace.wire import BYTES, EIGHT, VARINT, Buffer, Spans, WireError

numbers = st.integers(-(2**63), 2**63 - 1)
Field = tuple[int, int | bytes | float]
fields = st.tuples(st.integers(1, 1000), st.one_of(numbers, st.binary(max_size=200), st.floats(allow_nan=False)))


def expected(number: int, value: float | bytes) -> tuple[int, int, int]:
    if isinstance(value, bytes):
        return number, BYTES, len(value)
    if isinstance(value, float):
        return number, EIGHT, int(np.float64(value).view(np.int64))
    assert isinstance(value, int)
    return number, VARINT, value


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(fields, max_size=8), max_size=20))
def test_columns_hold_every_field_in_order(messages: list[list[Field]]) -> None:
    encoded = [b"".join(field(number, value) for number, value in each) for each in messages]
    buffer = Buffer(b"".join(field(4, each) for each in encoded))
    outer = buffer.fields_of(0, buffer.size)
    inner = buffer.fields(outer.spans())
    for owner, each in enumerate(messages):
        rows = np.flatnonzero(inner.owner == owner)
        rows = rows[np.argsort(inner.start[rows], kind="stable")]
        columns = (inner.number[rows], inner.wire[rows], inner.value[rows])
        assert list(zip(*map(np.ndarray.tolist, columns), strict=True)) == [expected(*pair) for pair in each]


def test_long_messages_are_read_piecewise_to_the_same_fields() -> None:
    buffer = Buffer(b"".join(field(4, bytes(n % 300)) + field(1, n) for n in range(2000)))
    whole = buffer.fields_of(0, buffer.size)
    pieces = list(buffer.chunks_of(0, buffer.size, most=100))
    assert len(pieces) > 10
    assert np.array_equal(np.concatenate([piece.start for piece in pieces]), whole.start)
    assert np.array_equal(np.concatenate([piece.value for piece in pieces]), whole.value)


def test_the_last_of_a_repeated_number_counts_and_absent_ones_are_told() -> None:
    buffer = Buffer(field(4, message({1: 5}) + message({1: 6})) + field(4, message({2: 9})))
    inner = buffer.fields(buffer.fields_of(0, buffer.size).spans())
    assert inner.numbers(1, 2, missing=-7).tolist() == [6, -7]


@pytest.mark.parametrize(
    "octets",
    [
        b"\x08",  # a tag without a number
        b"\x22\x7fabc",  # more bytes announced than there are
        varint(4 << 3 | 3),  # a wire type that was abolished
        b"\x08" + b"\xff" * 11,  # a number that does not end
        b"\x00\x01",  # field number 0
        b"\x09\x01\x02",  # a double that is cut
    ],
)
def test_what_is_no_message_is_refused_one_by_one_and_in_columns(octets: bytes) -> None:
    buffer = Buffer(octets * 20)
    with pytest.raises(WireError, match="byte"):
        buffer.fields_of(0, len(octets))
    starts = np.arange(20, dtype=np.int64) * len(octets)
    with pytest.raises(WireError, match="byte"):
        buffer.fields(Spans(starts, starts + len(octets)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(octets: bytes) -> None:
    buffer = Buffer(octets * 12)
    starts = np.arange(12, dtype=np.int64) * len(octets)
    try:
        buffer.fields(Spans(starts, starts + len(octets)))
        read = True
    except NearpeakError:
        read = False
    try:
        buffer.fields_of(0, len(octets))
        assert read
    except NearpeakError:
        assert not read
