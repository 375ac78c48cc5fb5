"""`Timeline`: what one process did on its host threads and devices, in columns, whatever profiler recorded it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError

__all__ = ["Collectives", "Device", "Kind", "Lane", "MemorySamples", "Steps", "Timeline"]

Int64s = NDArray[np.int64]


class Kind(IntEnum):
    """What an event is. The first four run on a device, the others on the host."""

    KERNEL = 0
    """Computes on the device. Memory sets count as computing: they write results that a kernel needs."""
    COMMUNICATION = 1
    """A kernel that exchanges data between ranks."""
    COPY = 2
    """Between host and device, or within a device; `names` says the direction (see `trace.kinds.copy_route`)."""
    DEVICE_SPAN = 3
    """A range that the profiler drew on a device lane around work of ours; it is no work itself."""
    LAUNCH = 4
    """A host call that hands work to the device."""
    SYNC = 5
    """A host call that waits for the device."""
    CALL = 6
    """Any other call into the driver or its library."""
    OP = 7
    """An operator of the framework."""
    SPAN = 8
    """A range that the user or a library named."""
    INPUT = 9
    """Waiting for or making the next batch."""
    PYTHON = 10
    """A Python function."""
    PROFILER = 11
    """The profiler's own work that holds the program up."""
    OTHER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Where events follow one another: a thread of the host, or a stream of a device."""

    process: str
    thread: str
    """Thread or stream, as the trace names it."""
    device: int | None = None
    """None on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that the trace speaks of. What it does not say is None."""

    index: int
    name: str | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Training steps, in order. A step's end is not before its begin, and steps do not overlap."""

    number: Int64s
    start_ns: Int64s
    end_ns: Int64s
    inferred: str | None = None
    """How steps were found where the trace does not mark them; None where it does."""

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """What the trace says of exchanges, beyond their time; one entry for each event it says anything of."""

    row: Int64s
    """Of the event in the timeline."""
    n_bytes: Int64s
    """Of the message, on this rank; -1 unknown."""
    group_size: Int64s
    """Ranks that take part; -1 unknown."""
    operation: tuple[str, ...]
    """``all_reduce``; empty where unknown."""
    group: tuple[str, ...]
    """Name of the process group; empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySamples:
    """Allocator readings by time; -1 where one was not given."""

    time_ns: Int64s
    device: Int64s
    allocated_bytes: Int64s
    reserved_bytes: Int64s


def _no_numbers() -> Int64s:
    return np.zeros(0, np.int64)


def _no_steps() -> Steps:
    return Steps(number=_no_numbers(), start_ns=_no_numbers(), end_ns=_no_numbers())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One process (one rank) of a traced run. Rows are sorted by `start_ns`, then longest first."""

    source: str
    """The file, for evidence."""
    origin_ns: int = 0
    """Clock of the trace at `start_ns` 0; the same clock on all ranks only as far as machines agree."""
    epoch_ns: int = 0
    """Part of `origin_ns` that the times in the file leave out: some count from a moment that they name once."""
    start_ns: Int64s = field(default_factory=_no_numbers)
    duration_ns: Int64s = field(default_factory=_no_numbers)
    kind: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    lane: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Index into `lanes`."""
    name: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Index into `names`."""
    correlation: Int64s = field(default_factory=_no_numbers)
    """Joins a call on the host with the work it caused on a device; -1 where there is none."""
    n_bytes: Int64s = field(default_factory=_no_numbers)
    """Of copies and sets; -1 where unknown."""
    names: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = ()
    steps: Steps = field(default_factory=_no_steps)
    devices: tuple[Device, ...] = ()
    collectives: Collectives | None = None
    memory: MemorySamples | None = None
    rank: int | None = None
    rank_guessed: bool = False
    """Whether only the file's name speaks of it."""
    process: str | None = None
    """What tells the process from others of its machine, such as its number; None where it is not told."""
    world_size: int | None = None
    notes: tuple[str, ...] = ()
    """What was missing, wrong or inferred, each as a sentence."""

    def __post_init__(self) -> None:
        columns = (self.duration_ns, self.kind, self.lane, self.name, self.correlation, self.n_bytes)
        lengths = {len(self.start_ns), *map(len, columns)}
        if len(lengths) > 1:
            raise DataError(f"{self.source}: columns of a timeline have different lengths: {sorted(lengths)}.")

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64s:
        """Start plus duration."""
        return self.start_ns + self.duration_ns

    def lane_devices(self) -> NDArray[np.int64]:
        """Device of each lane; -1 for lanes of the host."""
        devices = (-1 if lane.device is None else lane.device for lane in self.lanes)
        return np.fromiter(devices, np.int64, len(self.lanes))

    def busy_devices(self) -> tuple[int, ...]:
        """Devices that computed, exchanged or copied, ascending."""
        lanes = self.used(self.lane, self.kind <= Kind.COPY)
        return tuple(sorted({int(device) for device in self.lane_devices()[lanes] if device >= 0}))

    @staticmethod
    def used(column: NDArray[np.int32], chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Distinct numbers of lanes or names among chosen rows, ascending; counting is faster than sorting."""
        return np.flatnonzero(np.bincount(column[chosen], minlength=1))

    def rows(self, *kinds: Kind, device: int | None = None) -> NDArray[np.intp]:
        """Row numbers of events of these kinds, on one device if given, in order of start."""
        is_wanted = np.zeros(256, np.bool_)  # a table: `np.isin` takes longer than all else here
        is_wanted[list(kinds)] = True
        chosen = is_wanted[self.kind]
        if device is not None:
            chosen &= self.lane_devices()[self.lane] == device
        return np.flatnonzero(chosen)

    def with_notes(self, notes: Iterable[str]) -> Timeline:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))
