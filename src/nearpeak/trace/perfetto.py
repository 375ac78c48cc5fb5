"""Writes traces for Perfetto (https://ui.perfetto.dev): nearpeak's causes as tracks of their own over the original.

A Chrome JSON trace passes through unchanged, piece by piece, however large; the tracks are put in at the head of its
list of events. Formats that Perfetto cannot open are written out as such a trace first.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError
from nearpeak.trace.octets import is_gzip
from nearpeak.trace.timeline import Timeline

__all__ = ["Track", "overlay", "write_timelines"]

PIECE_BYTES = 1 << 16
MOST_HEAD_BYTES = 1 << 30
FIRST_PROCESS = 2_000_000_000
"""Above what systems number processes with, so that ours is no process of the trace."""
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
ROWS_AT_ONCE = 1 << 14
ENCODE = msgspec.json.Encoder().encode
NS_PER_US = 1000

Octets = gzip.GzipFile | BufferedReader | BufferedWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Spans in a row, such as the causes on one device; times are those of the trace's own clock."""

    group: str
    """Tracks of one group stand together: ``nearpeak, rank 3``."""
    name: str
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    label: NDArray[np.int64]
    """Index into `labels`."""
    labels: tuple[str, ...]


def overlay(source: Path, target: Path, tracks: Iterable[Track]) -> None:
    """Copy the Chrome JSON trace `source` to `target` (gzipped if so named), with the tracks in it."""
    with _reading(source) as original, _writing(target) as file:
        head, rest = _until_events(original, source)
        file.write(head)
        count = 0
        for event in _events_of_tracks(tracks):
            file.write((b",\n" if count else b"\n") + event)
            count += 1
        rest = _with_next_token(rest, original)
        if count and rest.lstrip()[:1] not in (b"]", b""):
            file.write(b",\n")
        file.write(rest)
        shutil.copyfileobj(original, file, PIECE_BYTES)


def write_timelines(target: Path, timelines: Iterable[Timeline], tracks: Iterable[Track]) -> None:
    """Timelines of any format as a Chrome JSON trace, with the tracks in it."""
    with _writing(target) as file:
        file.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
        separator = b""
        for event in _all_events(timelines, tracks):
            file.write(separator + event)
            separator = b",\n"
        file.write(b"\n]}\n")


def _all_events(timelines: Iterable[Timeline], tracks: Iterable[Track]) -> Iterator[bytes]:
    yield from _events_of_tracks(tracks)
    for number, timeline in enumerate(timelines):
        yield from _events_of_timeline(timeline, number)


# -- events ------------------------------------------------------------------------------------------------------------


def _events_of_tracks(tracks: Iterable[Track]) -> Iterator[bytes]:
    groups: dict[str, int] = {}
    for thread, track in enumerate(tracks, 1):
        if track.group not in groups:
            groups[track.group] = FIRST_PROCESS + len(groups)
            yield _named("process_name", groups[track.group], 0, track.group)
            yield ENCODE(
                {"ph": "M", "name": "process_sort_index", "pid": groups[track.group], "args": {"sort_index": -1}}
            )
        yield _named("thread_name", groups[track.group], thread, track.name)
        names = [ENCODE(label) for label in track.labels]
        yield from _spans(track.start_ns, track.duration_ns, track.label, names, groups[track.group], thread)


def _events_of_timeline(timeline: Timeline, number: int) -> Iterator[bytes]:
    names = [ENCODE(name) for name in timeline.names]
    for index, lane in enumerate(timeline.lanes):
        where = lane.process if lane.device is None else f"{lane.process} device {lane.device}"
        process = 1 + number * 1000 + (0 if lane.device is None else 1 + lane.device)
        rows = np.flatnonzero(timeline.lane == index)
        if len(rows):
            yield _named("process_name", process, 0, where)
            yield _named("thread_name", process, index, lane.thread)
            start_ns = timeline.start_ns[rows] + timeline.origin_ns
            yield from _spans(start_ns, timeline.duration_ns[rows], timeline.name[rows], names, process, index)


def _named(kind: str, process: int, thread: int, name: str) -> bytes:
    return ENCODE({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}})


def _spans(
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    name: NDArray[np.integer],
    names: list[bytes],
    process: int,
    thread: int,
) -> Iterator[bytes]:
    """Microseconds with three digits behind the point: the digits are set, not calculated, so nothing is rounded."""
    for first in range(0, len(start_ns), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        for at, lasts, index in zip(
            start_ns[rows].tolist(), duration_ns[rows].tolist(), name[rows].tolist(), strict=True
        ):
            yield b'{"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"name":%s}' % (
                process,
                thread,
                _microseconds(at),
                _microseconds(lasts),
                names[index],
            )


def _microseconds(ns: int) -> bytes:
    sign = b"-" if ns < 0 else b""
    return sign + b"%d.%03d" % divmod(abs(ns), NS_PER_US)


# -- the original ------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path) -> Iterator[Octets]:
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: its gzip stream is cut or damaged; decompress what is left of it first.") from error


@contextmanager
def _writing(path: Path) -> Iterator[Octets]:
    """Whole or not at all: what was written of it is deleted where reading the original fails."""
    part = path.with_name(path.name + ".part")
    try:
        with gzip.open(part, "wb", compresslevel=1) if path.name.endswith(".gz") else part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _until_events(file: Octets, path: Path) -> tuple[bytes, bytes]:
    """What stands before the first event, the list's bracket included, and what was read beyond."""
    head, at, depth, key = b"", 0, 0, b""
    while len(head) < MOST_HEAD_BYTES and (piece := file.read(PIECE_BYTES)):
        head += piece
        for match in TOKEN.finditer(head, at):
            token = match.group()
            if token[:1] == b'"' and (len(token) < 2 or not token.endswith(b'"') or match.end() == len(head)):
                break  # it may go on in the next piece
            at = match.end()
            if token == b"[" and (depth == 0 or (depth == 1 and key == b'"traceEvents"')):
                return head[:at], head[at:]
            depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token, 0)
            key = token if token[:1] == b'"' else b""
    raise DataError(f"{path}: holds no list of events (`traceEvents`), so it is no Chrome trace.")


def _with_next_token(rest: bytes, file: Octets) -> bytes:
    """Enough of what follows to see whether the list is empty."""
    while not rest.strip() and (piece := file.read(PIECE_BYTES)):
        rest += piece
    return rest
