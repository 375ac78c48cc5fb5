"""Protobuf's wire format, decoded in columns.

Why not the protobuf package: it needs generated classes for every message, and it makes a Python object of every event
of a trace, which for a file of 500 MB is tens of gigabytes and minutes. Here thousands of messages of one kind are
decoded in lockstep: round by round, one field of each, with numpy. Nothing is copied but what is asked for.

The format: a message is a row of fields, each a tag (field number · 8 + wire type) and a value; wire types are
0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError

__all__ = ["BYTES", "EIGHT", "FOUR", "VARINT", "Buffer", "Fields", "Spans", "WireError"]

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
LENGTH_OF_VARINT = 10
"""A varint of 64 bits takes at most ten bytes of seven bits each."""
FIRST_TAG, END_OF_TAGS = 1 << 3, 1 << 32
"""Field numbers go from 1 to 2²⁹ - 1."""
WORD = 8
TOO_FEW = 8
"""A round costs as much as reading about so many fields one by one."""
HIGH_BITS = np.uint64(0x8080808080808080)
LOW_BITS = np.uint64(0x0101010101010101)

Ints = NDArray[np.int64]


class WireError(DataError):
    """Bytes that are no message; `at` is where."""

    def __init__(self, message: str, at: int):
        super().__init__(f"byte {at:,}: {message}")
        self.at = at


@dataclass(frozen=True, slots=True)
class Spans:
    """Where messages or strings lie in the buffer: from `start` up to `end`, each."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, chosen: slice | NDArray[np.bool_] | Ints) -> Spans:
        return Spans(self.start[chosen], self.end[chosen])


@dataclass(frozen=True, slots=True)
class Fields:
    """All fields of many messages, as columns. `value` is the number, or of bytes their length, found at `start`."""

    owner: Ints
    """Index of the message that the field belongs to."""
    number: Ints
    wire: Ints
    value: Ints
    start: Ints

    def of(self, number: int, wire: int) -> Fields:
        """Those of one field number, in the order of their messages."""
        chosen = np.flatnonzero((self.number == number) & (self.wire == wire))
        chosen = chosen[np.argsort(self.owner[chosen], kind="stable")]
        return Fields(*(column[chosen] for column in (self.owner, self.number, self.wire, self.value, self.start)))

    def numbers(self, number: int, count: int, missing: int = 0) -> Ints:
        """Field `number` of each of `count` messages; the last one where a message repeats it."""
        column = np.full(count, missing, dtype=np.int64)
        found = self.of(number, VARINT)
        column[found.owner] = found.value
        return column

    def spans(self) -> Spans:
        """Where the bytes lie; for fields of wire type `BYTES` only."""
        return Spans(self.start, self.start + self.value)


class _Found:
    """Columns that grow."""

    def __init__(self) -> None:
        self.tag, self.value, self.start = array("q"), array("q"), array("q")

    def add(self, tag: int, value: int, start: int) -> None:
        for column, item in ((self.tag, tag), (self.value, value), (self.start, start)):
            column.append(item)

    def fill_tags(self, tag: int, count: int) -> None:
        self.tag.extend(array("q", (tag,)) * count)

    def taken(self) -> Fields:
        """What was found so far; begins anew."""
        tag, value, start = (np.array(column, dtype=np.int64) for column in (self.tag, self.value, self.start))
        self.__init__()
        return Fields(np.zeros(len(tag), dtype=np.int64), tag >> 3, tag & 7, value, start)


class Buffer:
    """Bytes that hold messages: a file mapped into memory, or bytes."""

    def __init__(self, data: bytes | memoryview | NDArray[np.uint8]):
        """The bytes are not copied, but for the last few: whole words are read near the end, too."""
        octets = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        self.octets = octets
        self.size = len(octets)
        self.view = octets.data
        self._tail_from = max(0, self.size - 2 * WORD)
        self._tail = _words(np.concatenate([octets[self._tail_from :], np.zeros(2 * WORD, dtype=np.uint8)]))
        self._body = _words(octets) if self.size >= WORD else self._tail

    # -- one after the other -------------------------------------------------------------------------------------------

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and where the next thing begins."""
        view, value = self.view, 0
        for shift in range(0, 7 * LENGTH_OF_VARINT, 7):
            if at >= end:
                raise WireError("a number runs over the end of its message.", at)
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
        raise WireError(f"a number of more than {LENGTH_OF_VARINT} bytes.", at)

    def fields_of(self, start: int, end: int) -> Fields:
        """The fields of one message."""
        return _joined([(f.owner, f.number, f.wire, f.value, f.start) for f in self.chunks_of(start, end)])

    def chunks_of(self, start: int, end: int, most: int = 1 << 17) -> Iterator[Fields]:
        """The fields of one message, about `most` at a time: a line of a trace has millions of events."""
        found = _Found()
        at = start
        while at < end:
            tag, at = self.varint(at, end)
            if tag & 7 == BYTES:
                at = self._run_of_bytes(at, end, tag, found, most)
            else:
                at = self._one_number(at, end, tag, found)
            if len(found.start) >= most:
                yield found.taken()
        yield found.taken()

    def _one_number(self, at: int, end: int, tag: int, found: _Found) -> int:
        wire, value = tag & 7, 0
        if wire == VARINT:
            value, after = self.varint(at, end)
        else:
            after = at + {EIGHT: 8, FOUR: 4}.get(wire, self.size)
        if after > end or not FIRST_TAG <= tag < END_OF_TAGS:
            raise WireError(f"a field with tag {tag} does not fit into its message.", at)
        found.add(tag, _signed(value) if wire == VARINT else self._fixed(at, after), at)
        return after

    def _run_of_bytes(self, at: int, end: int, tag: int, found: _Found, most: int) -> int:
        """Lengths and places of fields with the same one-byte tag that follow each other."""
        view, before = self.view, len(found.start)
        add_length, add_start = found.value.append, found.start.append
        for _ in range(most):
            length = view[at] if at < end else 0x80
            if length < 0x80:
                at += 1
            else:
                length, at = self.varint(at, end)
            if at + length > end or not FIRST_TAG <= tag < END_OF_TAGS:
                raise WireError(f"a field of {length:,} bytes runs over the end of its message.", at)
            add_length(length)
            add_start(at)
            at += length
            if at >= end or view[at] != tag or tag >= 0x80:
                break
            at += 1
        else:
            at -= 1  # the next run begins with this tag
        found.fill_tags(tag, len(found.start) - before)
        return at

    def _fixed(self, at: int, after: int) -> int:
        return int.from_bytes(self.view[at:after], "little", signed=True)

    def text(self, start: int, end: int) -> str:
        """A string; what is no UTF-8 is replaced."""
        return bytes(self.view[start:end]).decode("utf-8", "replace")

    # -- many at once --------------------------------------------------------------------------------------------------

    def fields(self, messages: Spans) -> Fields:
        """The fields of many messages, decoded in lockstep: one field of each message a round."""
        parts: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
        owner = np.arange(len(messages), dtype=np.int64)
        at, end = messages.start, messages.end
        while True:
            going = at < end
            if not going.all():
                owner, at, end = owner[going], at[going], end[going]
            if len(at) <= TOO_FEW:
                parts += map(self._rest_of, owner.tolist(), at.tolist(), end.tolist())
                return _joined(parts)
            tag, value_at = self._varints(at, end)
            wire, number = tag & 7, tag >> 3
            value, start, at = self._values(wire, value_at, end)
            self._check(number, at, end, value_at)
            parts.append((owner, number, wire, value, start))

    def _rest_of(self, owner: int, at: int, end: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """What remains of one long message, where rounds would no longer pay."""
        rest = self.fields_of(at, end)
        return np.full(len(rest.number), owner, dtype=np.int64), rest.number, rest.wire, rest.value, rest.start

    def _values(self, wire: Ints, at: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Value, where it lies, and where the next field begins."""
        fixed = (wire == EIGHT) | (wire == FOUR)
        if fixed.any():
            return self._values_some_fixed(wire, at, end, fixed)
        value, after = self._varints(at, end)
        is_bytes = wire == BYTES
        self._refuse((wire != VARINT) & ~is_bytes, at, "a field of a type that does not exist.")
        self._refuse(is_bytes & ((value < 0) | (value > self.size)), at, "a field runs over the end of its message.")
        return value, after, np.where(is_bytes, after + value, after)

    def _values_some_fixed(self, wire: Ints, at: Ints, end: Ints, fixed: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
        """The same where some fields are numbers of fixed size; those must not be taken for varints."""
        value, start, after = np.empty_like(at), at.copy(), np.empty_like(at)
        width = np.where(wire[fixed] == EIGHT, 8, 4)
        word = self._gather(at[fixed])
        value[fixed] = np.where(width == WORD, word, word & np.uint64(0xFFFFFFFF)).astype(np.int64)
        after[fixed] = at[fixed] + width
        rest = ~fixed
        if rest.any():
            value[rest], start[rest], after[rest] = self._values(wire[rest], at[rest], end[rest])
        return value, start, after

    def _check(self, number: Ints, after: Ints, end: Ints, at: Ints) -> None:
        self._refuse(
            (after > end) | (number < FIRST_TAG >> 3) | (number >= END_OF_TAGS >> 3),
            at,
            "a field runs over the end of its message.",
        )

    def _refuse(self, wrong: NDArray[np.bool_], at: Ints, message: str) -> None:
        if wrong.any():
            raise WireError(message, int(at[np.argmax(wrong)]))

    def _gather(self, at: Ints) -> NDArray[np.uint64]:
        """Eight bytes from each place, as a little-endian word; behind the end there are zeros."""
        if len(at) and int(at.max()) > self.size - WORD:
            near_end = at >= self._tail_from
            word = self._body[np.minimum(at, max(0, self.size - WORD))]
            tail = np.minimum(at[near_end] - self._tail_from, len(self._tail) - 1)
            word[near_end] = self._tail[tail]
            return word
        return self._body[at]

    def _varints(self, at: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Numbers and where each ends; seven bits a byte, put together without a loop over the bytes."""
        word = self._gather(at)
        stop = ~word & HIGH_BITS
        low = stop & (~stop + np.uint64(1))
        below = low - np.uint64(1)
        value = _packed(word & (below | low))
        length = (((below & LOW_BITS) * LOW_BITS) >> np.uint64(56)).astype(np.int64)
        long = stop == 0
        if long.any():
            value[long], length[long] = self._long_varints(at[long], word[long])
        after = at + length
        self._refuse(after > end, at, "a number runs over the end of its message.")
        return value.view(np.int64), after

    def _long_varints(self, at: Ints, word: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], Ints]:
        """Numbers of nine or ten bytes: negative ones and hashes."""
        rest = self._gather(at + WORD)
        ninth, tenth = rest & np.uint64(0xFF), (rest >> np.uint64(8)) & np.uint64(0xFF)
        has_tenth = ninth >= 0x80
        self._refuse(has_tenth & (tenth >= 0x80), at, f"a number of more than {LENGTH_OF_VARINT} bytes.")
        value = _packed(word) | ((ninth & np.uint64(0x7F)) << np.uint64(56))
        value |= np.where(has_tenth, (tenth & np.uint64(1)) << np.uint64(63), np.uint64(0))
        return value, np.where(has_tenth, 10, 9)


def _words(octets: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A word at every byte: overlapping, not aligned, not copied."""
    return np.ndarray(shape=(len(octets) - WORD + 1,), dtype="<u8", buffer=octets, strides=(1,))


def _packed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Eight groups of seven bits, brought together: neighbours first, then pairs, then halves."""
    word = word & np.uint64(0x7F7F7F7F7F7F7F7F)
    for mask, shift in ((0x7F007F007F007F00, 1), (0x3FFF00003FFF0000, 2), (0x0FFFFFFF00000000, 4)):
        high = word & np.uint64(mask)
        word = (word ^ high) | (high >> np.uint64(shift))
    return word


def _joined(parts: list[tuple[Ints, Ints, Ints, Ints, Ints]]) -> Fields:
    if not parts:
        return Fields(*(np.zeros(0, dtype=np.int64) for _ in range(5)))
    return Fields(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
