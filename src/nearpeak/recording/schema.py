"""What a recording holds: its tables, one frozen dataclass a row. Unknown is None, never 0.

Standard library only: the probe writes these rows inside processes of the user's, whose environment may have nothing
else of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Self

__all__ = [
    "PHASES",
    "SCHEMA",
    "TABLES",
    "EventRecord",
    "ProcessRecord",
    "ReadingBlock",
    "ReadingRecord",
    "Row",
    "StackRecord",
    "StepRecord",
    "WorkerRecord",
    "create_statements",
]

SCHEMA = 2

PHASES: dict[str, str] = {
    "input": "waiting for the next batch",
    "copy": "copying from host to device",
    "forward": "forward pass and loss, as the host sees it: from the batch's arrival to the backward pass",
    "backward": "backward pass",
    "communication": "collectives that the training thread waits for",
    "optimizer": "gradient clipping inside the update, the update itself",
    "logging": "logging, metrics and synchronisation points outside the phases above",
    "evaluation": "evaluation between two training batches",
    "checkpoint": "saving",
    "other": "what no hook saw",
}
"""Phases of a step on the training thread's clock; exclusive, and their sum is the step."""


class Row:
    """Base of all rows: knows its table and turns itself into one."""

    table: ClassVar[str]
    key: ClassVar[tuple[str, ...]]
    __slots__ = ()

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        return _columns_of(cls)

    @classmethod
    def insert_statement(cls) -> str:
        columns = cls.columns()
        return f"INSERT OR REPLACE INTO {cls.table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"

    def cells(self) -> tuple[Any, ...]:
        # SQLite turns NaN into NULL; a loss that is NaN is not one that was not measured.
        return tuple(["nan" if value != value else value for value in _reader_of(type(self))(self)])

    @classmethod
    def from_cells(cls, names: list[str], cells: tuple[Any, ...]) -> Self:
        """A row that was written by another version may lack columns, or have more."""
        kinds = _kinds_of(cls)
        named = {name: cell for name, cell in zip(names, cells, strict=True) if name in kinds}
        return cls(**{name: _from_cell(cell, kinds[name]) for name, cell in named.items()})


@cache
def _kinds_of(kind: type[Row]) -> dict[str, str]:
    return {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]


@cache
def _columns_of(kind: type[Row]) -> tuple[str, ...]:
    return tuple(_kinds_of(kind))


@cache
def _reader_of(kind: type[Row]) -> Callable[[Row], tuple[Any, ...]]:
    """All columns at once: the probe turns every step into a row while the training wants the interpreter."""
    return attrgetter(*_columns_of(kind))


def _from_cell(cell: Any, kind: str) -> Any:
    return float(cell) if isinstance(cell, str) and kind.startswith("float") else cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord(Row):
    """One process that trained."""

    table: ClassVar[str] = "processes"
    key: ClassVar[tuple[str, ...]] = ("process",)

    process: int
    """Number of the process in this recording, from 0; the rank where there is one and it is free."""
    pid: int
    started_ns: int
    """Unix time, as every `…_ns` of a row that names a moment."""
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    command: str | None = None
    """sys.argv as JSON."""
    facts: str = "{}"
    """`ProcessFacts` as JSON: how the process is set up; replaced when more is known."""
    ended_ns: int | None = None
    fault: str | None = None
    """What broke inside the probe; the training went on without it."""
    lost_steps: int = 0
    """Steps that the disk refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(Row):
    """One optimizer step of one process. What was not measured is None."""

    table: ClassVar[str] = "steps"
    key: ClassVar[tuple[str, ...]] = ("process", "step")

    process: int = 0
    step: int
    """Optimizer updates made by this process before it, from 0."""
    ended_ns: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    samples: int | None = None
    """Of this process, as are the tokens."""
    tokens: int | None = None
    padded_tokens: int | None = None
    """Tokens computed, padding included; `tokens` counts the real ones."""
    micro_batches: int | None = None
    """Backward passes."""
    exchanges: int | None = None
    """Backward passes in which the ranks exchanged gradients: one is enough for an update."""
    wall_s: float | None = None

    # Phases on the training thread's clock; see PHASES. They sum to wall_s.
    input_ms: float | None = None
    copy_ms: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    communication_ms: float | None = None
    optimizer_ms: float | None = None
    logging_ms: float | None = None
    evaluation_ms: float | None = None
    checkpoint_ms: float | None = None
    other_ms: float | None = None

    # On the device's clock, between events recorded on the training stream.
    device_forward_ms: float | None = None
    device_backward_ms: float | None = None
    device_optimizer_ms: float | None = None
    device_gap_ms: float | None = None
    """From the end of the previous update's kernels to the first work of this step."""
    starved_share: float | None = None
    """Of the phase boundaries, how many found the device with nothing left to do: 0 to 1."""

    syncs: int | None = None
    """Times the training thread read a value from a tensor or waited for the device."""
    sync_ms: float | None = None
    cpu_ms: float | None = None
    """CPU time of the process, all threads."""
    main_cpu_ms: float | None = None
    """CPU time of the training thread."""
    backward_cpu_ms: float | None = None
    """CPU time of the process during the backward pass: a rank that waits for another has little."""
    fetch_ms: float | None = None
    """Dataset and collator inside the training process: a part of input_ms, where there are no workers."""
    fetch_cpu_ms: float | None = None
    """CPU time of the training thread in them."""
    copies: int | None = None
    copied_bytes: int | None = None
    pageable_bytes: int | None = None
    loss_scale: float | None = None
    skipped_updates: int | None = None
    compilations: int | None = None
    compile_ms: float | None = None
    collections: int | None = None
    """Runs of Python's garbage collector."""
    collect_ms: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    rss_bytes: int | None = None
    read_bytes: int | None = None
    """Read from the disk, not from the page cache, by the process and its workers."""
    worker_cpu_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord(Row):
    """What one loader worker did so far."""

    table: ClassVar[str] = "workers"
    key: ClassVar[tuple[str, ...]] = ("process", "pid")

    process: int
    pid: int
    """The worker's own."""
    batches: int = 0
    fetch_ms: float = 0.0
    fetch_cpu_ms: float = 0.0
    first_batch_ms: float | None = None
    """From the start of the loader to its first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRecord(Row):
    """How often a sample of the training thread, or of a worker, met this place."""

    table: ClassVar[str] = "stacks"
    key: ClassVar[tuple[str, ...]] = ("process", "phase", "frames")

    process: int
    phase: str
    """One of PHASES, `worker` for the samples of a loader worker, or `sync` for a synchronisation point."""
    frames: str
    """Innermost first, as a JSON list of `file:line function`; at most twelve."""
    samples: int
    total_ms: float | None = None
    """Time that is known and not only sampled: of synchronisation points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord(Row):
    """Something that happens now and then."""

    table: ClassVar[str] = "events"
    key: ClassVar[tuple[str, ...]] = ("process", "at_ns", "kind")

    process: int
    at_ns: int
    kind: str
    """`evaluation`, `checkpoint`, `compile`, `overflow`, `loader_start`, `fault`, `xid` …"""
    step: int | None = None
    duration_ms: float | None = None
    detail: str = "{}"
    """JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRecord(Row):
    """What a device, or the host (device −1), read at one moment."""

    table: ClassVar[str] = "readings"
    key: ClassVar[tuple[str, ...]] = ("at_ns", "device")

    at_ns: int
    device: int
    name: str | None = None
    busy_percent: float | None = None
    """What NVML calls utilisation: some kernel ran. Of the host: all cores together."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_hz: float | None = None
    clock_max_hz: float | None = None
    temperature_c: float | None = None
    throttle_reasons: str | None = None
    """Names joined by commas; empty if there is none."""
    busiest_core_percent: float | None = None
    running_threads: float | None = None
    """The host's run queue."""
    disk_read_bytes: int | None = None
    """Since the machine was started."""
    disk_written_bytes: int | None = None
    page_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingBlock(Row):
    """Many readings of one device, packed: a day of eight devices would fill gigabytes as rows."""

    table: ClassVar[str] = "reading_blocks"
    key: ClassVar[tuple[str, ...]] = ("device", "first_ns")

    device: str
    """Its key: ``0``, ``0:2`` for a MIG instance, ``host``."""
    first_ns: int
    """Unix time of its first reading; a block that still grows is written again under the same key."""
    last_ns: int
    readings: int
    data: bytes
    """Columns as `recording.columns` packs them."""


TABLES: tuple[type[Row], ...] = (
    ProcessRecord,
    StepRecord,
    WorkerRecord,
    StackRecord,
    EventRecord,
    ReadingRecord,
    ReadingBlock,
)
_AFFINITY = {"int": "INTEGER", "float": "REAL", "str": "TEXT", "bytes": "BLOB"}


def create_statements() -> str:
    """The tables of an empty recording."""
    info = "CREATE TABLE IF NOT EXISTS info (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;\n"
    return info + "\n".join(_create_statement(row) for row in TABLES)


def _create_statement(row: type[Row]) -> str:
    columns = ", ".join(f"{name} {_AFFINITY[kind.split(' ')[0]]}" for name, kind in _kinds_of(row).items())
    return f"CREATE TABLE IF NOT EXISTS {row.table} ({columns}, PRIMARY KEY ({', '.join(row.key)})) WITHOUT ROWID;"
