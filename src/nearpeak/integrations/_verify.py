"""Whether a Trainer's checkpoint can be loaded, before anything is loaded from it; nothing in it is executed.

One that was published by the drop-in has a manifest with sizes and hashes. Of one that plain transformers wrote, every
file is read as far as its format tells: headers and sizes of safetensors, JSON, the checksums in torch's archives.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nearpeak.errors import StorageError
from nearpeak.train.manifest import MANIFEST, Manifest, read_manifest
from nearpeak.train.storage import Checkpoint, CheckpointFolder

__all__ = ["Verdict", "checkpoints_in", "folder_of", "looks_whole", "step_of", "verify"]

NAME = re.compile(r"checkpoint-(\d+)")
STATE = "trainer_state.json"
INCOMPLETE = "checkpoint-is-incomplete.txt"
"""transformers' mark of a just-in-time checkpoint that is being written."""
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin",
)  # fmt: skip
RESUMES = {
    "optimizer": ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*"),
    "schedule": ("scheduler.pt",),
    "random state": ("rng_state.pth", "rng_state_*.pth"),
}
"""What a training goes on from besides its weights, and the files that may hold it."""
FOREIGN = "the choice of micro-batches and the order of an epoch (it was not saved by nearpeak)"


@dataclass(slots=True)
class Verdict:
    """What was found out about one checkpoint."""

    path: Path
    why: str | None = None
    """What is wrong with it; None if it can be loaded."""
    manifest: Manifest | None = None
    lacks: list[str] = field(default_factory=list)


def step_of(path: Path) -> int | None:
    """The optimizer step in a checkpoint's name; clocks are set back, names are not."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints, newest step first."""
    try:
        found = [(step_of(path), path) for path in folder.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for step, path in sorted(((s, p) for s, p in found if s is not None), reverse=True)]


def folder_of(root: Path) -> CheckpointFolder:
    """The same folder, as nearpeak's own checkpoints are kept in one."""
    return CheckpointFolder(root, prefix="checkpoint-", digits=1)


def verify(path: Path) -> Verdict:
    """Read all of a checkpoint."""
    if not path.is_dir():
        return Verdict(path, "there is no such folder")
    verdict = _by_manifest(path) if (path / MANIFEST).exists() else _by_content(path)
    if verdict.why is None:
        verdict.lacks = [name for name, files in RESUMES.items() if not _any(path, files)]
        verdict.lacks += [FOREIGN] if verdict.manifest is None else []
    return verdict


def looks_whole(path: Path) -> bool:
    """As far as names and sizes tell, which costs nothing."""
    if not (path / MANIFEST).exists():
        return (path / STATE).is_file() and not (path / INCOMPLETE).exists() and _any(path, WEIGHTS)
    try:
        files = read_manifest(path).files
        return all((path / name).stat().st_size == record.bytes for name, record in files.items())
    except (StorageError, OSError):
        return False


def _by_manifest(path: Path) -> Verdict:
    try:
        manifest = read_manifest(path)
    except StorageError as error:
        return Verdict(path, str(error))
    checked = folder_of(path.parent).verify(Checkpoint(path, manifest.step, 0, manifest, "unverified"))
    return Verdict(path, checked.why, manifest)


def _by_content(path: Path) -> Verdict:
    why = _what_is_missing(path)
    if why is None:
        files = sorted(each for each in path.rglob("*") if each.is_file())
        why = next((f"{each.relative_to(path)} {bad}" for each in files if (bad := _what_is_wrong(each))), None)
    return Verdict(path, why)


def _what_is_missing(path: Path) -> str | None:
    if (path / INCOMPLETE).exists():
        return f"{INCOMPLETE} says that its save did not end"
    if not (path / STATE).is_file():
        return f"{STATE} is missing: it is written last, so the save did not end"
    if not _any(path, WEIGHTS) and not any(_any(each, WEIGHTS) for each in path.iterdir() if each.is_dir()):
        return "it holds no weights (model.safetensors and the like)"
    return _missing_shard(path)


def _missing_shard(path: Path) -> str | None:
    for index in path.glob("*.index.json"):
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{index.name} is damaged: {error}"
        missing = sorted(shard for shard in shards if not (path / shard).is_file())
        if missing:
            return f"{missing[0]} is missing, which {index.name} names"
    return None


def _any(path: Path, names: Sequence[str]) -> bool:
    return any(next(path.glob(name), None) is not None for name in names)


def _what_is_wrong(file: Path) -> str | None:
    try:
        if file.suffix == ".safetensors":
            return _wrong_safetensors(file)
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        elif file.suffix in (".pt", ".pth", ".bin", ".ckpt"):
            return _wrong_archive(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is damaged: {error}"
    return None


def _wrong_safetensors(file: Path) -> str | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):  # reads the header, and compares it with the size of the file
            return None
    except SafetensorError as error:
        return f"is damaged: {error}"


def _wrong_archive(file: Path) -> str | None:
    with open(file, "rb") as opened:
        start = opened.read(2)
    if start[:1] == b"\x80":  # a bare pickle, as torch wrote before 1.6: it holds no checksum
        return None
    if start != b"PK":
        return f"is no file of torch ({file.stat().st_size} bytes)"
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        return f"is cut or damaged: {error}"
    return f"is damaged: {damaged}" if damaged else None
