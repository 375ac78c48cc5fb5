"""What a checkpoint says about itself: step, geometry, cursor, and the size and hash of every file, under a seal."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nearpeak import __version__
from nearpeak.errors import SettingError, StorageError
from nearpeak.train.durable import FileRecord

__all__ = ["Manifest", "Position", "check_file_name", "read_manifest", "write_manifest"]

SCHEMA = 1
MANIFEST = "manifest.json"
SEAL = "seal"
"""Hash of everything else in the manifest: a changed digit of the cursor must not pass for a cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training stands."""

    step: int
    """Optimizer updates made."""
    cursor: int
    """Samples consumed; the next window begins here."""
    global_batch: int
    ranks: int = 1
    extra: dict[str, Any] = field(default_factory=dict)
    """What else belongs to the geometry; JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is and what its files must hold."""

    schema: int
    serial: int
    """Counts what was published in this folder: the order of checkpoints, whatever clocks and steps say."""
    step: int
    cursor: int
    global_batch: int
    ranks: int
    files: dict[str, FileRecord]
    saved_at: str
    """For people; nothing is decided by it."""
    versions: dict[str, str]
    extra: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(record.bytes for record in self.files.values())


def write_manifest(
    folder: Path, position: Position, records: Mapping[str, FileRecord], versions: Mapping[str, str], serial: int
) -> Manifest:
    """Write the manifest of a folder whose other files are durable, durable itself; returns it as read back."""
    stated = _stated(position, records, versions, serial)
    try:
        text = json.dumps(stated | {SEAL: _seal(stated)}, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingError(f"Position(extra={position.extra!r}): must be JSON: {error}.") from None
    with open(folder / MANIFEST, "x", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_manifest(folder)


def _stated(
    position: Position, records: Mapping[str, FileRecord], versions: Mapping[str, str], serial: int
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "serial": serial,
        **dataclasses.asdict(position),
        "files": {name: dataclasses.asdict(record) for name, record in records.items()},
        "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": sys.version.split()[0], "nearpeak": __version__, **versions},
    }


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint; StorageError says what is wrong with it."""
    try:
        return _checked(json.loads((folder / MANIFEST).read_bytes()))
    except FileNotFoundError:
        raise StorageError(f"it has no {MANIFEST}: it was not written to its end, or not by nearpeak") from None
    except OSError as error:
        raise StorageError(f"{MANIFEST} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(f"{MANIFEST} is damaged: {error}") from None


def _checked(stated: dict[str, Any]) -> Manifest:
    seal = stated.pop(SEAL, None)
    if seal != _seal(stated):
        raise ValueError("its content is not what was written")
    if stated["schema"] > SCHEMA:
        raise StorageError(
            f"it was written by nearpeak {stated['versions'].get('nearpeak')}, whose schema {stated['schema']} this "
            f"version ({__version__}) cannot read; upgrade nearpeak"
        )
    stated["files"] = {name: FileRecord(**record) for name, record in stated["files"].items()}
    known = {each.name for each in dataclasses.fields(Manifest)}
    return Manifest(**{name: value for name, value in stated.items() if name in known})


def _seal(stated: Mapping[str, Any]) -> str:
    canonical = json.dumps(stated, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_file_name(name: str) -> None:
    """Refuse names that would leave the checkpoint or hide its manifest."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or name == MANIFEST:
        raise SettingError(f"checkpoint file {name!r}: must be a path inside the checkpoint, and not {MANIFEST}.")
