"""What a Kineto trace says beside its events' times: ranks, devices, exchanges, the allocator's readings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.kineto_events import Event, SpanArguments
from nearpeak.trace.ranks import with_rank_of_name
from nearpeak.trace.timeline import Collectives, Device, MemorySamples, Timeline

__all__ = ["collectives_of", "devices_of", "memory_of", "memory_samples_of", "rank_of"]

ELEMENT_BYTES = (
    (re.compile("8|bool|char|byte", re.IGNORECASE), 1),
    (re.compile("16|half|short", re.IGNORECASE), 2),
    (re.compile("64|double|long", re.IGNORECASE), 8),
)
ON_DEVICE = (1, 20)
"""c10's numbers of CUDA (and HIP, which goes by the same) and HIP proper."""


def devices_of(properties: Any) -> tuple[Device, ...]:
    """From `deviceProperties`; entries that are not understood are passed over."""
    entries = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    return tuple(_device(entry, position) for position, entry in enumerate(entries))


def _device(entry: dict[str, Any], position: int) -> Device:
    index, name, memory = entry.get("id"), entry.get("name"), entry.get("totalGlobalMem")
    major, minor = entry.get("computeMajor"), entry.get("computeMinor")
    processors = entry.get("numSms")
    return Device(
        index=index if isinstance(index, int) else position,
        name=name if isinstance(name, str) else None,
        memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
        compute_capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
        multiprocessors=processors if isinstance(processors, int) and processors > 0 else None,
    )


def rank_of(timeline: Timeline, info: Any, path: Path) -> Timeline:
    """Rank and world size as the trace gives them, else as the file's name does, saying so."""
    given = info if isinstance(info, dict) else {}
    rank, world = given.get("rank"), given.get("world_size")
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return replace(timeline, rank=rank, world_size=world if isinstance(world, int) and world > 0 else None)
    return with_rank_of_name(timeline, path)


def collectives_of(found: list[tuple[int, SpanArguments]], order: NDArray[np.intp], count: int) -> Collectives | None:
    """What kernels of exchanges were given as arguments; rows of the file become rows of the timeline."""
    if not found:
        return None
    position = np.full(count, -1, np.int64)
    position[order] = np.arange(len(order))
    kept = [(int(position[row]), each) for row, each in found if position[row] >= 0]
    return Collectives(
        row=np.array([row for row, _ in kept], np.int64),
        n_bytes=np.array([_message_bytes(each) for _, each in kept], np.int64),
        group_size=np.array([_count(each.group_size) for _, each in kept], np.int64),
        operation=tuple(_text(each.collective) for _, each in kept),
        group=tuple(_text(each.group) for _, each in kept),
    )


def _message_bytes(arguments: SpanArguments) -> int:
    """The larger of what goes in and comes out: what an algorithm's bandwidth is counted in."""
    elements = max(_count(arguments.elements_in), _count(arguments.elements_out))
    dtype = _text(arguments.dtype)
    if elements < 0 or not dtype:
        return -1
    size = next((size for pattern, size in ELEMENT_BYTES if pattern.search(dtype)), 4)
    return elements * size


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**50 else -1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def memory_samples_of(events: list[Event]) -> NDArray[np.float64]:
    """Rows of time (µs), device, allocated, reserved; -1 for what is no number. Only readings of a GPU."""
    read = [event for event in events if event.args is not None and event.args.device_type in ON_DEVICE]
    arguments = [event.args for event in read if event.args is not None]
    columns = (
        [event.ts for event in read],
        [each.device_id for each in arguments],
        [each.allocated for each in arguments],
        [each.reserved for each in arguments],
    )
    return np.stack([_numbers(column) for column in columns], axis=1)


def _numbers(values: list[Any]) -> NDArray[np.float64]:
    try:
        found = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.array([value if isinstance(value, int | float) else -1.0 for value in values], np.float64)
    return np.where(np.abs(found) < 2.0**60, found, -1.0)


def memory_of(parts: list[NDArray[np.float64]], origin_us: float) -> MemorySamples | None:
    """All readings in order of time."""
    rows = np.concatenate(parts) if parts else np.zeros((0, 4))
    if not len(rows):
        return None
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    whole = rows[:, 1:].astype(np.int64)
    return MemorySamples(
        time_ns=np.rint((rows[:, 0] - origin_us) * 1000).astype(np.int64),
        device=whole[:, 0],
        allocated_bytes=whole[:, 1],
        reserved_bytes=whole[:, 2],
    )
