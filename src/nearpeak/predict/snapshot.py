"""Reads memory snapshots (`torch.cuda.memory._dump_snapshot`), with an unpickler that refuses every global."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.errors import DataError
from nearpeak.predict.allocator_settings import AllocatorSettings

__all__ = ["Snapshot", "SnapshotBlock", "SnapshotEvent", "SnapshotSegment", "read_snapshot"]

Frames = tuple[dict[str, Any], ...]
IN_USE = frozenset({"active_allocated", "active_pending_free", "active_awaiting_free"})


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """A block as it lay when the snapshot was taken."""

    address: int
    size: int
    requested: int
    in_use: bool
    frames: Frames


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """Memory from the driver, with its blocks by address."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    private_pool: int
    blocks: tuple[SnapshotBlock, ...]

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """One thing the allocator did."""

    action: str
    """`alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `segment_map`, `segment_unmap`,
    `oom`, `snapshot`, …"""
    address: int
    size: int
    stream: int
    time_us: int | None
    frames: Frames


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One device's memory and the history that was recorded before."""

    device: int
    settings: AllocatorSettings
    segments: tuple[SnapshotSegment, ...]
    events: tuple[SnapshotEvent, ...]

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)


class _NoGlobals(pickle.Unpickler):
    """Snapshots are dictionaries, lists, strings and numbers: nothing in them needs code."""

    def find_class(self, module: str, name: str) -> Any:
        raise DataError(
            f"the file asks for {module}.{name}: a memory snapshot holds plain data alone, so this is none (or not a "
            "safe one) and is not read."
        )


def read_snapshot(path: str | Path) -> tuple[Snapshot, ...]:
    """All devices of a snapshot file that have memory or a history."""
    raw = _unpickled(Path(path))
    if not isinstance(raw, dict) or "segments" not in raw:
        raise DataError(f"{path}: not a memory snapshot: it has no 'segments'. See torch.cuda.memory._dump_snapshot.")
    try:
        return _devices(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a memory snapshot as PyTorch 2.x writes it: {error!r}.") from None


def _unpickled(path: Path) -> Any:
    if path.is_file() and zipfile.is_zipfile(path):
        raise DataError(f"{path}: an archive, such as torch.save writes; snapshots are plain pickle files.")
    try:
        with path.open("rb") as file:
            return _NoGlobals(file).load()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, OverflowError) as error:
        raise DataError(f"{path}: not a pickle file: {error}.") from None
    except (KeyError, AttributeError, TypeError, MemoryError) as error:
        raise DataError(f"{path}: a damaged pickle file: {error!r}.") from None


# -- from dictionaries -------------------------------------------------------------------------------------------------


def _devices(raw: dict[str, Any]) -> tuple[Snapshot, ...]:
    settings = _settings(raw.get("allocator_settings") or {})
    traces = raw.get("device_traces") or []
    devices = {segment["device"] for segment in raw["segments"]} | {i for i, trace in enumerate(traces) if trace}
    return tuple(
        Snapshot(
            device=device,
            settings=settings,
            segments=tuple(_segment(each) for each in _by_address(raw["segments"]) if each["device"] == device),
            events=tuple(map(_event, traces[device])) if device < len(traces) else (),
        )
        for device in sorted(devices)
    )


def _by_address(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: item["address"])


def _settings(raw: dict[str, Any]) -> AllocatorSettings:
    split = raw.get("max_split_size", -1)
    divisions = raw.get("roundup_power2_divisions") or {}
    return AllocatorSettings(
        expandable_segments=bool(raw.get("expandable_segments", False)),
        max_split_bytes=split if 0 < split < 1 << 62 else None,
        garbage_collection_threshold=float(raw.get("garbage_collection_threshold") or 0.0),
        roundup_power2_divisions={int(key): int(value) for key, value in divisions.items() if int(value) > 1},
    )


def _segment(raw: dict[str, Any]) -> SnapshotSegment:
    pool = raw.get("segment_pool_id") or (0, 0)
    return SnapshotSegment(
        address=raw["address"],
        size=raw["total_size"],
        stream=raw["stream"],
        small=raw["segment_type"] == "small",
        expandable=bool(raw.get("is_expandable", False)),
        private_pool=hash(tuple(pool)) if any(pool) else 0,
        blocks=_blocks(raw),
    )


def _blocks(raw: dict[str, Any]) -> tuple[SnapshotBlock, ...]:
    """Old snapshots leave block addresses out: they follow each other."""
    blocks, address = [], raw["address"]
    for each in raw["blocks"]:
        address = each.get("address", address)
        in_use, size = each["state"] in IN_USE, each["size"]
        requested = each.get("requested_size", size) if in_use else 0
        blocks.append(SnapshotBlock(address, size, requested, in_use, _frames(each)))
        address += size
    return tuple(blocks)


def _event(raw: dict[str, Any]) -> SnapshotEvent:
    address = raw.get("addr", raw.get("device_free", 0))
    return SnapshotEvent(
        raw["action"], address, raw.get("size", 0), raw.get("stream", 0), raw.get("time_us"), _frames(raw)
    )


def _frames(raw: dict[str, Any]) -> Frames:
    if raw.get("frames"):
        return tuple(raw["frames"])
    history = raw.get("history") or ()
    return tuple(history[0].get("frames", ())) if history else ()
