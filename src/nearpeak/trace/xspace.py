"""The messages of an XPlane file, as columns: a space of planes (devices, hosts) of lines (streams, threads) of events.

Field numbers are those of `xplane.proto` (openxla/xla, xla/tsl/profiler/protobuf). Times are picoseconds from the
begin of the line, which is nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.wire import BYTES, EIGHT, VARINT, Buffer, Fields, Spans, WireError

__all__ = ["Line", "Plane", "Stat", "Stats", "planes_of"]

Ints = NDArray[np.int64]

SPACE_PLANE, SPACE_ERROR, SPACE_WARNING, SPACE_HOSTNAME = 1, 2, 3, 4
PLANE_ID, PLANE_NAME, PLANE_LINE, PLANE_EVENT_NAMES, PLANE_STAT_NAMES, PLANE_STAT = 1, 2, 3, 4, 5, 6
LINE_ID, LINE_NAME, LINE_BEGIN_NS, LINE_EVENT, LINE_DURATION_PS, LINE_SHOWN_NAME = 1, 2, 3, 4, 9, 11
EVENT_NAME, EVENT_OFFSET_PS, EVENT_DURATION_PS, EVENT_STAT = 1, 2, 3, 4
STAT_NAME, STAT_DOUBLE, STAT_UNSIGNED, STAT_SIGNED, STAT_TEXT, STAT_BYTES, STAT_REFERENCE = 1, 2, 3, 4, 5, 6, 7
ENTRY_KEY, ENTRY_VALUE = 1, 2
NAME_TEXT, NAME_SHOWN, NAME_STAT = 2, 4, 5
PS_PER_NS = 1000
MOST_MESSAGES = 1 << 17
"""Decoded at once: bounds the memory to some tens of MB."""


@dataclass(frozen=True, slots=True)
class Stat:
    """One stat of many events: the events that have it, and its values."""

    event: Ints
    value: Ints
    """A number, a double's bits, a reference to a name, or the length of a text, as `field` says."""
    field: Ints
    start: Ints


@dataclass(slots=True)
class Stats:
    """The stats of a line's events that were asked for, by name; grows chunk by chunk."""

    buffer: Buffer
    names: dict[int, str]
    """Of all stats of the plane, by id: values may refer to them."""
    found: dict[str, list[Stat]] = field(default_factory=dict)

    def numbers(self, name: str, count: int, missing: int = -1) -> Ints:
        """A stat that is a whole number, for each of `count` events."""
        column = np.full(count, missing, dtype=np.int64)
        for part in self.found.get(name, ()):
            whole = (part.field == STAT_UNSIGNED) | (part.field == STAT_SIGNED)
            column[part.event[whole]] = part.value[whole]
        return column

    def having(self, name: str) -> Ints:
        """The events that have a stat."""
        parts = [part.event for part in self.found.get(name, ())]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def texts(self, name: str) -> dict[int, str]:
        """A stat that is a text, by event."""
        found: dict[int, str] = {}
        for part in self.found.get(name, ()):
            for event, value, number, start in zip(part.event, part.value, part.field, part.start, strict=True):
                if number == STAT_TEXT:
                    found[int(event)] = self.buffer.text(int(start), int(start + value))
                elif number == STAT_REFERENCE:
                    found[int(event)] = self.names.get(int(value), "")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A stream of a device or a thread of a host."""

    id: int
    name: str
    begin_ns: int
    metadata: Ints
    """Id of each event's name."""
    offset_ps: Ints
    duration_ps: Ints
    stats: Stats

    def __len__(self) -> int:
        return len(self.metadata)

    @property
    def start_ns(self) -> Ints:
        """Rounded down, so that what follows without a gap still does."""
        return self.begin_ns + self.offset_ps // PS_PER_NS

    @property
    def duration_ns(self) -> Ints:
        return (self.offset_ps + self.duration_ps) // PS_PER_NS - self.offset_ps // PS_PER_NS


class Plane:
    """A device or a host: its names at once, its lines when asked for."""

    def __init__(self, buffer: Buffer, start: int, end: int):
        """Reads the plane's own fields, not those of its events."""
        self._buffer = buffer
        self._fields = buffer.fields_of(start, end)
        self.id = int(self._fields.numbers(PLANE_ID, 1)[0])
        self.name = _text(buffer, self._fields, PLANE_NAME)
        self._event_names: _Names | None = None
        self._stat_names: dict[int, str] | None = None

    @property
    def stat_names(self) -> dict[int, str]:
        """By id."""
        if self._stat_names is None:
            names = _Names(self._buffer, self._fields.of(PLANE_STAT_NAMES, BYTES).spans())
            self._stat_names = {int(key): names.text(int(key)) for key in names.keys}
        return self._stat_names

    def event_name(self, key: int) -> str:
        """The name of an event's metadata id; empty where the file has none."""
        if self._event_names is None:
            self._event_names = _Names(self._buffer, self._fields.of(PLANE_EVENT_NAMES, BYTES).spans())
        return self._event_names.text(key)

    def numbers(self) -> dict[str, int]:
        """The plane's own stats that are whole numbers: what a device can do."""
        columns = _stat_columns(self._buffer, self._fields.of(PLANE_STAT, BYTES))
        return {
            self.stat_names.get(int(key), ""): int(value)
            for key, value, number in zip(columns.metadata, columns.stat.value, columns.stat.field, strict=True)
            if number in (STAT_UNSIGNED, STAT_SIGNED)
        }

    def texts(self) -> dict[str, str]:
        """The plane's own stats that are texts: vendor and type."""
        columns = _stat_columns(self._buffer, self._fields.of(PLANE_STAT, BYTES))
        stats = Stats(self._buffer, self.stat_names)
        found: dict[str, str] = {}
        for position, key in enumerate(columns.metadata):
            stats.found = {"": [_chosen(columns.stat, np.array([position]))]}
            found.update({self.stat_names.get(int(key), ""): text for text in stats.texts("").values()})
        return found

    def lines(self, wanted: frozenset[str] = frozenset()) -> Iterator[Line]:
        """Every line with its events, and those of their stats whose names are `wanted`."""
        ids = {key: name for key, name in self.stat_names.items() if name in wanted}
        for start, end in _pairs(self._fields.of(PLANE_LINE, BYTES).spans()):
            yield self._line(start, end, ids)

    def _line(self, start: int, end: int, wanted: dict[int, str]) -> Line:
        stats = Stats(self._buffer, self.stat_names)
        own: list[Fields] = []
        events: list[tuple[Ints, Ints, Ints]] = []
        seen = 0
        for chunk in self._buffer.chunks_of(start, end, MOST_MESSAGES):
            spans = chunk.of(LINE_EVENT, BYTES).spans()
            own.append(chunk.of(LINE_ID, VARINT))
            own += [chunk.of(LINE_BEGIN_NS, VARINT), chunk.of(LINE_NAME, BYTES), chunk.of(LINE_SHOWN_NAME, BYTES)]
            events.append(self._events(spans, seen, wanted, stats))
            seen += len(spans)
        columns = [np.concatenate(parts) for parts in zip(*events, strict=True)]
        return Line(
            id=_number(own, LINE_ID),
            name=self._line_name(own),
            begin_ns=_number(own, LINE_BEGIN_NS),
            metadata=columns[0],
            offset_ps=columns[1],
            duration_ps=columns[2],
            stats=stats,
        )

    def _line_name(self, own: list[Fields]) -> str:
        for number in (LINE_NAME, LINE_SHOWN_NAME):
            found = [each for each in own if len(each.number) and each.number[0] == number]
            if found:
                return _text(self._buffer, found[-1], number)
        return ""

    def _events(self, spans: Spans, seen: int, wanted: dict[int, str], stats: Stats) -> tuple[Ints, Ints, Ints]:
        fields = self._buffer.fields(spans)
        if wanted:
            self._collect(fields.of(EVENT_STAT, BYTES), seen, wanted, stats)
        count = len(spans)
        return (
            fields.numbers(EVENT_NAME, count),
            fields.numbers(EVENT_OFFSET_PS, count),
            fields.numbers(EVENT_DURATION_PS, count),
        )

    def _collect(self, found: Fields, seen: int, wanted: dict[int, str], stats: Stats) -> None:
        columns = _stat_columns(self._buffer, found)
        for key, name in wanted.items():
            chosen = np.flatnonzero(columns.metadata == key)
            if len(chosen):
                part = _chosen(columns.stat, chosen)
                event = found.owner[part.event] + seen
                stats.found.setdefault(name, []).append(Stat(event, part.value, part.field, part.start))


@dataclass(frozen=True, slots=True)
class _StatColumns:
    metadata: Ints
    stat: Stat


def _stat_columns(buffer: Buffer, found: Fields) -> _StatColumns:
    """Of each stat message its name and its value; `Stat.event` is the message's index."""
    fields = buffer.fields(found.spans())
    count = len(found.number)
    value, number, start = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    kinds = ((STAT_DOUBLE, EIGHT), (STAT_UNSIGNED, VARINT), (STAT_SIGNED, VARINT), (STAT_REFERENCE, VARINT))
    for kind, wire in (*kinds, (STAT_TEXT, BYTES)):
        each = fields.of(kind, wire)
        value[each.owner], start[each.owner], number[each.owner] = each.value, each.start, kind
    return _StatColumns(fields.numbers(STAT_NAME, count), Stat(np.arange(count), value, number, start))


def _chosen(stat: Stat, chosen: Ints) -> Stat:
    return Stat(stat.event[chosen], stat.value[chosen], stat.field[chosen], stat.start[chosen])


class _Names:
    """A map from id to a message with a name; the names are decoded when asked for."""

    def __init__(self, buffer: Buffer, entries: Spans):
        self._buffer = buffer
        fields = buffer.fields(entries)
        values = fields.of(ENTRY_VALUE, BYTES)
        keys = fields.numbers(ENTRY_KEY, len(entries))
        names = buffer.fields(values.spans())
        self.keys = keys[values.owner]
        self._places: dict[int, tuple[int, int]] = {}
        for number in (NAME_SHOWN, NAME_TEXT):  # the name proper comes last: it wins
            found = names.of(number, BYTES)
            spans = found.spans()
            self._places.update(zip(self.keys[found.owner].tolist(), _pairs(spans), strict=True))

    def text(self, key: int) -> str:
        start, end = self._places.get(key, (0, 0))
        return self._buffer.text(start, end)


def planes_of(buffer: Buffer) -> tuple[list[Plane], list[str]]:
    """The planes of a file, and what could not be read of it: a file that was cut has whole planes before the cut."""
    planes: list[Plane] = []
    problems: list[str] = []
    for start, end, problem in _top_level(buffer):
        if problem:
            problems.append(problem)
            continue
        try:
            planes.append(Plane(buffer, start, end))
        except WireError as error:
            problems.append(f"a plane is damaged ({error}) and was left out.")
    return planes, problems


def _top_level(buffer: Buffer) -> Iterator[tuple[int, int, str]]:
    """Where each plane lies; a problem instead, and nothing behind it, where the file is cut or no XPlane file."""
    at = 0
    while at < buffer.size:
        try:
            tag, after = buffer.varint(at, buffer.size)
            length, body = buffer.varint(after, buffer.size)
        except WireError as error:
            yield at, at, f"the file is damaged ({error})."
            return
        if tag & 7 != BYTES or not SPACE_PLANE <= tag >> 3 <= SPACE_HOSTNAME:
            yield at, at, f"byte {at:,} begins no plane (tag {tag})."
            return
        if body + length > buffer.size:
            yield at, at, f"the file is cut: a plane of {length:,} bytes begins at byte {at:,}, and was left out."
            return
        if tag >> 3 == SPACE_PLANE:
            yield body, body + length, ""
        at = body + length


def _pairs(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans.start.tolist(), spans.end.tolist(), strict=True))


def _text(buffer: Buffer, fields: Fields, number: int) -> str:
    found = fields.of(number, BYTES)
    return buffer.text(int(found.start[-1]), int(found.start[-1] + found.value[-1])) if len(found.start) else ""


def _number(parts: list[Fields], number: int) -> int:
    found = [each.value[-1] for each in parts if len(each.number) and each.number[0] == number]
    return int(found[-1]) if found else 0
