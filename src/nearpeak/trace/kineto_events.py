"""The events of a Kineto trace (PyTorch Profiler, Chrome's JSON format) as typed lists, a few megabytes at a time.

A file is cut between two events, and the cut is proved by decoding: text from one event's begin that parses as a list
ends where an event ends. Where it does not parse, because the file is broken or an argument looks like an event, the
text is taken event by event, mended where a known fault of a writer is seen, and what still cannot be read is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Union

import msgspec

from nearpeak.errors import DataError
from nearpeak.trace.pieces import Pieces

__all__ = ["Arguments", "Document", "Event", "EventLists", "Span", "SpanArguments"]

CHUNK_BYTES = 1 << 18
"""Events of a chunk are gone before the next is decoded: small chunks stay in the processor's cache."""
SMALL_REST_BYTES = 1 << 13
PATIENCE_CHUNKS = 32
"""An event may be long, and hold what looks like its end: so much text is waited for before it is taken apart."""
MOST_WAITING_BYTES = 256 << 20
"""Some writers put hundreds of megabytes before the events; text beyond this without an event's end is given up."""
BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{)")
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BACK = (1, 2, 3, 9, 33, 129)
"""Where a chunk may be cut: so many boundaries before the end of its text."""
MOST_JOINED = 6
"""An event whose text holds this many more places that look like its end is given up."""
Scalar = int | float | str | None


class SpanArguments(msgspec.Struct, gc=False):
    """What we use of a span's arguments; anything else in them is skipped while parsing."""

    correlation: Scalar = -1
    n_bytes: Scalar = msgspec.field(default=-1, name="bytes")
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")


class Arguments(SpanArguments, gc=False):
    """What we use of the arguments of any event."""

    name: Any = None
    """Of a process or thread, in events of kind `M`."""
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")


CAMEL = {
    "distributed_info": "distributedInfo",
    "device_properties": "deviceProperties",
    "base_time_nanoseconds": "baseTimeNanoseconds",
    "trace_name": "traceName",
}
"""Keys beside the events that we read."""


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = -1
    tid: Scalar = -1
    ts: float | str | None = None
    dur: float | str | None = None
    args: Arguments | None = None


class _Told(msgspec.Struct, gc=False):
    """`Event` without its kind, which stands in the type."""

    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = -1
    tid: Scalar = -1
    ts: float | str | None = None
    dur: float | str | None = None


class Span(_Told, gc=False, tag_field="ph", tag="X"):
    """An event with a begin and a duration, which most are."""

    args: SpanArguments | None = None
    ph: ClassVar[str] = "X"


class _Moment(_Told, gc=False, tag_field="ph", tag="i"):
    """An event of one moment."""

    args: Arguments | None = None
    ph: ClassVar[str] = "i"


class _About(_Told, gc=False, tag_field="ph", tag="M"):
    """The name of a process or thread."""

    args: Arguments | None = None
    ph: ClassVar[str] = "M"


class _Passed(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Arrows between events, counters and the like: skipped while parsing, and nothing is made of what they hold."""

    ph: ClassVar[str] = ""


def _passed(kind: str) -> type[_Passed]:
    return msgspec.defstruct(f"_Passed_{kind}", [], bases=(_Passed,), gc=False, tag_field="ph", tag=kind)  # type: ignore[return-value]


PASSED = "ftBEICPNODRcvVabenS("
"""Other kinds of Chrome's format; a trace with still others is read the slower way."""
_KNOWN: Any = Union[(Span, _Moment, _About, _Passed, *map(_passed, PASSED))]


class Document(msgspec.Struct, rename={"trace_events": "traceEvents", **CAMEL}):
    """The whole file, or what stands around its events."""

    trace_events: list[Event] | None = None
    distributed_info: Any = None
    device_properties: Any = None
    base_time_nanoseconds: Any = None
    trace_name: Any = None


class EventLists:
    """Iterate over it once; `document` (without events) and `notes` are complete afterwards."""

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self.document = Document()
        self.unreadable = 0
        self._pieces = Pieces(path)
        self._chunk_bytes = chunk_bytes
        self._notes: list[str] = []

    @property
    def notes(self) -> list[str]:
        """What was wrong with the file."""
        lost = f"{self.unreadable} events could not be read and are missing"
        return [*self._pieces.notes, *self._notes, *([lost] if self.unreadable else [])]

    def __iter__(self) -> Iterator[list[Event]]:
        text, begun, wanted = bytearray(), False, self._chunk_bytes
        for piece in self._pieces:
            text += piece
            while len(text) >= wanted:
                taken = self._take(text, begun)
                wanted = self._chunk_bytes if taken is not None else 2 * len(text)
                if taken is not None:
                    begun = True
                    yield taken
        taken = self._take(text, begun) if len(text) > SMALL_REST_BYTES else None  # all but the last event
        if taken is not None:
            begun = True
            yield taken
        yield from self._take_rest(text, begun)

    def _take(self, text: bytearray, begun: bool) -> list[Event] | None:
        """Decode and remove what is whole at the begin of `text`; None where more text is needed."""
        if text.startswith(BYTE_ORDER_MARK):
            del text[: len(BYTE_ORDER_MARK)]
        for cut in _last_boundaries(text):
            events = self._decoded(text, cut, begun)
            if events is not None:
                text[: cut + 1] = b"["
                return events
        patient = len(text) < PATIENCE_CHUNKS * self._chunk_bytes
        if not begun and ((not patient and EVENTS.search(text)) or len(text) > MOST_WAITING_BYTES):
            return self._begin_one_by_one(text)
        return None if patient or not begun else self._take_one_by_one(text, last=False)

    def _decoded(self, text: bytearray, cut: int, begun: bool) -> list[Event] | None:
        """Events up to the comma at `cut`; None if what stands there is not a list of whole events."""
        if begun or _is_list(text):
            return _whole_events(text, 0, cut)
        found = EVENTS.search(text, 0, cut)
        header = _try(DOCUMENT, text[: found.end()] + b"]}") if found else None
        if found is not None and header is not None:
            events = _whole_events(text, found.end() - 1, cut)
            if events:
                self._events_of(header)
                return events
        with memoryview(text)[:cut] as whole:
            document = _try(DOCUMENT, b"".join((whole, b"]}")))
        if document is None or not document.trace_events:
            return None
        return self._events_of(document)

    def _events_of(self, document: Document) -> list[Event]:
        for field in CAMEL:
            value = getattr(document, field)
            if value is not None:
                setattr(self.document, field, value)
        return document.trace_events or []

    def _take_rest(self, text: bytearray, begun: bool) -> Iterator[list[Event]]:
        """What is left when the file has ended: it may hold the end of the document."""
        if text.startswith(BYTE_ORDER_MARK):
            del text[: len(BYTE_ORDER_MARK)]
        ends_as_list = (begun or _is_list(text)) and text.rstrip().endswith(b"]")
        events = _try(EVENT_LIST, text) if ends_as_list else None
        if events is not None:
            yield events
            return
        document = _try(DOCUMENT, b'{"traceEvents":' + text if begun else text)
        if document is not None and document.trace_events is not None:
            yield self._events_of(document)
            return
        yield from self._take_broken_rest(text, begun)

    def _take_broken_rest(self, text: bytearray, begun: bool) -> Iterator[list[Event]]:
        if not begun and EVENTS.search(text) is None and not _is_list(text):
            raise DataError(f"{self.path}: holds no list of trace events; it is not a trace of PyTorch's profiler.")
        self._notes.append("the file is not whole JSON: it was read event by event")
        if not begun:
            yield self._begin_one_by_one(text)
        yield self._take_one_by_one(text, last=True) or []

    def _begin_one_by_one(self, text: bytearray) -> list[Event]:
        """Read the part before the events, which may be damaged, and leave the events."""
        found = EVENTS.search(text)
        if found is None and not _is_list(text):
            raise DataError(f"{self.path}: holds no list of trace events in its first {len(text):,} bytes.")
        if found is not None:
            header = _try(DOCUMENT, bytes(text[: found.end()]) + b"]}")
            if header is not None:
                self._events_of(header)
            text[: found.end()] = b"["
        return []

    def _take_one_by_one(self, text: bytearray, *, last: bool) -> list[Event] | None:
        """Decode each event alone; unless the file has ended, what follows the last boundary stays in `text`."""
        parts = _split(text)
        kept = b"" if last else parts.pop()
        if not parts and not last and len(text) < MOST_WAITING_BYTES:
            return None
        events: list[Event] = []
        position = 0
        while position < len(parts):
            event, used = _first_event(parts[position : position + MOST_JOINED])
            self.unreadable += event is None and bool(parts[position].strip(b" \r\n\t]}"))
            position += used
            if event is not None:
                events.append(event)
        text[:] = b"[" + (kept if len(kept) < MOST_WAITING_BYTES else b"")
        return events


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
EVENT_LIST = msgspec.json.Decoder(list[Event])
KNOWN_LIST = msgspec.json.Decoder(list[_KNOWN])
EVENT = msgspec.json.Decoder(Event)
LENIENT_EVENT = msgspec.json.Decoder(Event, strict=False)
DOCUMENT = msgspec.json.Decoder(Document)

NOT_FINITE = re.compile(rb"(:\s*)[-+]?(?:nan|inf(?:inity)?)(?:\(ind\))?(?=\s*[,}\]])", re.IGNORECASE)
"""Bandwidths of copies that took no time, as some versions of Kineto write them."""
LONE_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrtu])')
"""Windows paths, as some versions write them."""
CONTROL = re.compile(rb"[\x00-\x1f]")
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)


def _try(decoder: msgspec.json.Decoder[Any], text: Any) -> Any:
    """The decoded value; None where the text is not that."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError):
        return None


def _whole_events(text: bytearray, begin: int, cut: int) -> list[Event] | None:
    """From the bracket at `begin` to the comma at `cut`; None if that is no list of whole events."""
    text[cut : cut + 1] = b"]"
    with memoryview(text)[begin : cut + 1] as whole:
        events = _try(KNOWN_LIST, whole)
        events = _try(EVENT_LIST, whole) if events is None else events
    text[cut : cut + 1] = b","
    return events


def _is_list(text: bytearray) -> bool:
    """Whether the file is a bare list of events, as the first versions wrote it."""
    return text[:64].lstrip()[:1] == b"["


def _last_boundaries(text: bytearray) -> Iterator[int]:
    """Commas between the last events, the very last first, then some further back: the first is nearly always right."""
    reach, known = 1 << 11, 0
    while known < len(BACK):
        begin = max(0, len(text) - reach)
        found = [match.start(1) for match in BOUNDARY.finditer(text, begin)]
        for back in BACK[known:]:
            if back <= len(found):
                yield found[-back]
                known += 1
        if begin == 0:
            return
        reach *= 8


def _split(text: bytearray) -> list[bytes]:
    """The text of each event, as far as boundaries tell; without the list's opening bracket. At least one."""
    inner = bytes(text).lstrip().removeprefix(b"[")
    commas = [match.start(1) for match in BOUNDARY.finditer(inner)]
    return [inner[begin:end] for begin, end in zip([0, *(c + 1 for c in commas)], [*commas, len(inner)], strict=True)]


def _first_event(parts: list[bytes]) -> tuple[Event | None, int]:
    """The event that the first part begins, and how many parts it took; a part that begins none is passed over."""
    for joined in range(1, len(parts) + 1):
        text = b",".join(parts[:joined])
        event = _try(EVENT, text) or _try(LENIENT_EVENT, _mended(text))
        if event is not None:
            return event, joined
    return None, 1


def _mended(text: bytes) -> bytes:
    """The first object in `text`, without the faults that writers are known for."""
    text = NOT_FINITE.sub(rb"\1null", text)
    text = LONE_BACKSLASH.sub(rb"\\\\", CONTROL.sub(b" ", text))
    text = text.decode("utf-8", "replace").encode()
    depth = 0
    for token in TOKEN.finditer(text):
        depth += {b"{": 1, b"}": -1}.get(token.group(), 0)
        if depth == 0 and token.group() == b"}":
            return text[: token.end()].lstrip()
    return text
