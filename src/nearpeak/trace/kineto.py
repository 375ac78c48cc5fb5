"""Reads traces of PyTorch's profiler (Kineto) of all generations into a `Timeline`: events become columns chunk by
chunk, and no event object lives longer than its chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError
from nearpeak.trace.kinds import call_kind, copy_route, kernel_kind, span_kind
from nearpeak.trace.kineto_events import Event, EventLists, Span, SpanArguments
from nearpeak.trace.kineto_extras import collectives_of, devices_of, memory_of, memory_samples_of, rank_of
from nearpeak.trace.numbering import Numbers, numbered_pairs
from nearpeak.trace.steps import find_steps
from nearpeak.trace.timeline import Kind, Lane, Timeline

__all__ = ["is_kineto", "read_kineto"]

LONGEST_TRACE_US = 7 * 24 * 3600 * 1e6
"""Events further than this from the others carry a broken clock."""
LARGEST = 2**62


def is_kineto(first: bytes) -> bool:
    """Whether a file that begins with these bytes (unpacked) may be such a trace: an object, or a list of objects."""
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") or (text.removeprefix(b"[").lstrip().startswith((b"{", b"]")) and text[:1] == b"[")


def read_kineto(path: Path) -> Timeline:
    """Read one file, packed or not."""
    lists = EventLists(path)
    columns = _Columns()
    for events in lists:
        columns.add(events)
    return _timeline(path, columns, lists)


NO_ARGUMENTS = SpanArguments()
MOST_READINGS = 4096
"""Events that wait to become columns together: a chunk holds few of them."""


KEPT_AS = (float, float, *(np.int32,) * 4, np.int64, np.int64)
"""Begin, duration, name, category, process, thread, correlation, bytes."""


class _Joined(NamedTuple):
    """The columns of a whole file."""

    ts: NDArray[np.float64]
    duration: NDArray[np.float64]
    label: NDArray[np.int32]
    labels: list[tuple[Any, Any]]
    """Name and category, by label."""
    thread: NDArray[np.int32]
    threads: list[tuple[Any, Any]]
    """Process and thread, by thread."""
    correlation: NDArray[np.int64]
    n_bytes: NDArray[np.int64]


class _Columns:
    """Columns that grow by a part with every chunk."""

    def __init__(self) -> None:
        self.names, self.categories, self.processes, self.threads = Numbers(), Numbers(), Numbers(), Numbers()
        self.parts: list[tuple[NDArray[Any], ...]] = []
        self.about: list[Event] = []
        """Names of processes and threads."""
        self.readings: list[Event] = []
        self.memory_parts: list[NDArray[np.float64]] = []
        self.collectives: list[tuple[int, SpanArguments]] = []
        self.count = 0

    def add(self, events: list[Event]) -> None:
        """Append what a chunk holds."""
        spans = [event for event in events if type(event) is Span]
        if len(spans) < len(events):
            others = [event for event in events if type(event) is not Span and event.ph]
            spans += [event for event in others if event.ph == "X"]
            self._add_others([event for event in others if event.ph == "i" or event.ph == "M"])
        arguments = [event.args or NO_ARGUMENTS for event in spans]
        self.parts.append(
            (
                _floats([event.ts for event in spans]),
                _floats([event.dur for event in spans]),
                self.names.of([event.name for event in spans]),
                self.categories.of([event.cat for event in spans]),
                self.processes.of([event.pid for event in spans]),
                self.threads.of([event.tid for event in spans]),
                _integers([each.correlation for each in arguments]),
                _integers([each.n_bytes for each in arguments]),
            )
        )
        collectives = [each.collective for each in arguments]
        if collectives.count(None) < len(collectives):
            found = [row for row, name in enumerate(collectives) if name is not None]
            self.collectives += [(self.count + row, arguments[row]) for row in found]
        self.count += len(spans)

    def _add_others(self, events: list[Event]) -> None:
        self.about += [event for event in events if event.ph == "M"]
        self.readings += [event for event in events if event.args is not None and event.args.allocated is not None]
        if len(self.readings) > MOST_READINGS:
            self.memory_samples()

    def memory_samples(self) -> list[NDArray[np.float64]]:
        """Readings of the allocator so far, as columns; their events are let go."""
        if self.readings:
            self.memory_parts.append(memory_samples_of(self.readings))
            self.readings = []
        return self.memory_parts

    def joined(self) -> _Joined:
        """The columns in one piece each; parts are let go."""
        ts, duration, name, category, process, thread, correlation, n_bytes = self._in_one_piece()
        label, labels = numbered_pairs(self.names, self.categories, name, category)
        lane, lanes = numbered_pairs(self.processes, self.threads, process, thread)
        return _Joined(ts, duration, label, labels, lane, lanes, correlation, n_bytes)

    def _in_one_piece(self) -> tuple[NDArray[Any], ...]:
        parts, self.parts = self.parts or [tuple(np.zeros(0, kept_as) for kept_as in KEPT_AS)], []
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _floats(values: list[float | str | None]) -> NDArray[np.float64]:
    """NaN where a value is missing or no number."""
    try:
        return np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_float(value) for value in values], np.float64)


def _float(value: float | str | None) -> float:
    try:
        return float("nan") if value is None else float(value)
    except (ValueError, OverflowError):
        return float("nan")


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """-1 where a value is missing, no number, or too large to be true."""
    try:
        return np.array(values, np.int64)
    except (ValueError, TypeError, OverflowError):
        floats = [_float(value) if isinstance(value, int | float | str) else -1.0 for value in values]
        return np.array([int(value) if abs(value) < LARGEST else -1 for value in floats], np.int64)


@dataclass(frozen=True, slots=True)
class _Clock:
    """How times of the file become nanoseconds since `origin_us`."""

    origin_us: float
    sound: NDArray[np.bool_]
    """Of each event: whether its time can be believed."""


def _clock(ts: NDArray[np.float64], duration: NDArray[np.float64]) -> _Clock:
    finite = np.isfinite(ts) & (np.abs(ts) < LARGEST / 1000)  # in nanoseconds it must still be a number
    if not finite.any():
        return _Clock(0.0, finite)
    middle = float(np.median(ts[finite])) if not finite.all() else float(np.partition(ts, len(ts) // 2)[len(ts) // 2])
    with np.errstate(invalid="ignore", over="ignore"):
        sound = (np.abs(ts - middle) < LONGEST_TRACE_US) & ~(np.abs(duration) > LONGEST_TRACE_US)
    return _Clock(float(np.floor(ts[sound].min())) if sound.any() else middle, sound)


def _timeline(path: Path, columns: _Columns, lists: EventLists) -> Timeline:
    ts, duration, label, labels, thread, threads, correlation, n_bytes = columns.joined()
    if not len(ts) and not columns.about:
        raise DataError(f"{path}: holds no event with a begin and a duration; it is no trace of work that was done.")
    clock = _clock(ts, duration)
    label_kinds, label_names, names = _labels(labels)
    keep = clock.sound & (label_kinds[label] != DROPPED)
    notes = [*lists.notes, *_complaints(ts, duration, clock)]
    order, start_ns, duration_ns = _in_order(ts, duration, keep, clock.origin_us)
    kind = label_kinds[label[order]]
    lane, lanes = _lanes(thread[order], threads, kind, _said(columns.about))
    epoch_ns = _whole(lists.document.base_time_nanoseconds)
    timeline = Timeline(
        source=path.name,
        origin_ns=epoch_ns + round(clock.origin_us * 1000),
        epoch_ns=epoch_ns,
        start_ns=start_ns,
        duration_ns=duration_ns,
        kind=kind,
        lane=lane,
        name=label_names[label[order]],
        correlation=correlation[order],
        n_bytes=n_bytes[order],
        names=names,
        lanes=lanes,
        devices=devices_of(lists.document.device_properties),
        collectives=collectives_of(columns.collectives, order, len(ts)),
        memory=memory_of(columns.memory_samples(), clock.origin_us),
        process=_process(threads, thread[order[kind > Kind.DEVICE_SPAN]]),
    )
    return find_steps(rank_of(timeline.with_notes(notes), lists.document.distributed_info, path))


def _process(threads: list[tuple[Any, Any]], of_host_events: NDArray[np.int32]) -> str | None:
    """That of the thread that most events of the host are of."""
    counts = np.bincount(of_host_events, minlength=1)
    return str(threads[int(counts.argmax())][0]) if counts.any() else None


DROPPED = 255
"""Kind of events that say nothing about work: the profiler's own bracket around all others."""


def _labels(labels: list[tuple[Any, Any]]) -> tuple[NDArray[np.uint8], NDArray[np.int32], tuple[str, ...]]:
    """Of each (name, category): its kind and the number of its name; and the names."""
    names = Numbers()
    texts = ["" if name is None else str(name) for name, _ in labels]
    kinds = [int(_kind((category or "").lower(), text)) for text, (_, category) in zip(texts, labels, strict=True)]
    return np.array(kinds, np.uint8), names.of(texts), tuple(names)


HOST_RANGES = {
    "user_annotation": Kind.SPAN,
    "python_function": Kind.PYTHON,
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "": Kind.OP,
}
DEVICE_KERNELS = frozenset({"kernel", "concurrent_kernel", "gpu_memset", "memset", "gpu_op", "hip_kernel"})


@lru_cache(maxsize=8192)  # ranks of one job run the same kernels
def _kind(category: str, name: str) -> int:
    """Categories were renamed with the versions: `Kernel` and `kernel`, `Runtime` and `cuda_runtime`."""
    range_kind = HOST_RANGES.get(category)
    if range_kind is not None:
        return span_kind(name, range_kind)
    if category in DEVICE_KERNELS:
        is_copy = copy_route(name) != "unknown" and "kernel" not in name.lower()
        return Kind.COPY if is_copy else kernel_kind(name)
    if category.endswith("memcpy"):
        return Kind.COPY
    if category.endswith(("runtime", "driver", "_api")):
        return call_kind(name)
    if category == "overhead":
        return Kind.PROFILER
    if category == "trace":
        return DROPPED
    if category.startswith(("gpu_", "cuda_sync")):
        return Kind.DEVICE_SPAN
    return span_kind(name, Kind.OTHER)


def _complaints(ts: NDArray[np.float64], duration: NDArray[np.float64], clock: _Clock) -> list[str]:
    """What is wrong with the times."""
    unsound = int(np.count_nonzero(~clock.sound))
    without_end = int(np.count_nonzero(np.isnan(duration)))
    with np.errstate(invalid="ignore"):
        backward = int(np.count_nonzero(duration < 0))
    found = {
        f"{unsound} events have no time, or one that is days off the others; they are left out": unsound,
        f"{without_end} events have no duration; they count as moments": without_end,
        f"{backward} events end before they begin; they count as moments": backward,
    }
    return [text for text, count in found.items() if count]


def _in_order(
    ts: NDArray[np.float64], duration: NDArray[np.float64], keep: NDArray[np.bool_], origin_us: float
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the file in order of start, longest first, with their times in whole nanoseconds."""
    rows = np.flatnonzero(keep)
    start_ns = np.rint((ts[rows] - origin_us) * 1000).astype(np.int64)
    with np.errstate(invalid="ignore"):
        length = duration[rows]
        duration_ns = np.rint(np.where(length > 0, length, 0) * 1000).astype(np.int64)
    order = np.argsort(start_ns, kind="stable")
    start_ns, duration_ns = start_ns[order], duration_ns[order]
    shuffle = _ties_longest_first(start_ns, duration_ns)
    return rows[order[shuffle]], start_ns, duration_ns[shuffle]


def _ties_longest_first(start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """An order in which events of the same start stand longest first; others stay where they are."""
    same_as_before = np.concatenate([[False], start_ns[1:] == start_ns[:-1]])
    tied = same_as_before.copy()
    tied[:-1] |= same_as_before[1:]
    order = np.arange(len(start_ns))
    rows = np.flatnonzero(tied)
    order[rows] = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    return order


def _lanes(
    thread: NDArray[np.int32],
    threads: list[tuple[Any, Any]],
    kind: NDArray[np.uint8],
    said: dict[tuple[str, Any, Any], str],
) -> tuple[NDArray[np.int32], tuple[Lane, ...]]:
    """A process and thread is one lane on the host and another on a device: their numbers may be the same."""
    on_device = kind <= Kind.DEVICE_SPAN
    both = thread.astype(np.int64) * 2 + on_device
    used = np.flatnonzero(np.bincount(both, minlength=1))
    number = np.zeros(2 * len(threads) + 2, np.int32)
    number[used] = np.arange(len(used))
    return number[both], tuple(_lane(threads[key // 2], said, on_device=bool(key % 2)) for key in used)


def _lane(key: tuple[Any, Any], said: dict[tuple[str, Any, Any], str], *, on_device: bool) -> Lane:
    process, thread = key
    process_name = said.get(("process_name", process, None), "")
    thread_name = said.get(("thread_name", process, thread), "")
    device = _device_number(process) if on_device else None
    return Lane(
        process=f"{process_name} {process}".strip() if not on_device else f"device {device}",
        thread=thread_name or str(thread),
        device=device,
    )


def _device_number(process: Any) -> int:
    """Kineto gives the device as process number; text such as `GPU 1` is read too."""
    digits = "".join(filter(str.isdigit, str(process)))[:6]
    return int(digits) if digits else 0


def _said(about: list[Event]) -> dict[tuple[str, Any, Any], str]:
    """(what, process, thread) → its name."""
    named = [(event, event.args.name) for event in about if event.args is not None and isinstance(event.args.name, str)]
    return {
        (str(event.name), event.pid, event.tid if event.name == "thread_name" else None): str(name)
        for event, name in named
    }


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < LARGEST else 0
