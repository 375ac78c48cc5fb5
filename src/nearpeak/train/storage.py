"""A folder of checkpoints in which, whatever ends the process and whenever, every checkpoint is whole or is not there.

    folder = CheckpointFolder(Path("out"))
    draft = folder.begin(step=100, bytes_needed=900_000_000)      # out/.tmp-…, free space asked for first
    records = {"state.safetensors": write(draft.path / …)}
    draft.commit(Position(step=100, cursor=3200, global_batch=32, ranks=1), records)      # out/step-000000100

A checkpoint is published in this order: files → fsync → manifest → fsync → rename → fsync of the parent. The manifest
names every file with its size and hash and carries a seal over itself, so that a cut or changed byte anywhere is found.
Which checkpoint is newest is said by a serial number in the manifest: clocks are set back, and the step of an earlier
training in the same folder can be higher. Nothing here knows of torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nearpeak.errors import SettingError, StorageError
from nearpeak.train.durable import (
    FileRecord,
    WriterName,
    WritingLock,
    ask_for_space,
    hash_file,
    storage_error,
    sync_folder,
    sync_tree,
    unique_name,
)
from nearpeak.train.manifest import Manifest, Position, check_file_name, read_manifest, write_manifest

__all__ = [
    "Checkpoint",
    "CheckpointFolder",
    "Draft",
    "FileRecord",
    "Found",
    "Manifest",
    "Position",
    "Skipped",
    "hand_in",
    "read_manifest",
    "refuse",
    "wait_published",
]

TEMPORARY, TRASH, LOCK = ".tmp-", ".trash-", ".lock"
POLL_S = 0.02

Status = Literal["verified", "unverified", "broken"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One published folder and what is known about it."""

    path: Path
    step: int
    attempt: int
    """The second one of a step is called `step-….1`."""
    manifest: Manifest | None
    status: Status
    why: str | None = None
    """What is wrong with a broken one."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Newer is larger; one whose manifest cannot be read comes first."""
        return (-1 if self.manifest is None else self.manifest.serial, self.step, self.attempt)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was passed over."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The newest checkpoint that verifies, and what was passed over on the way to it."""

    checkpoint: Checkpoint | None
    skipped: list[Skipped]


OnBytes = Callable[[int], object]


class CheckpointFolder:
    """All checkpoints of one training, and those of its predecessors in the same folder."""

    def __init__(self, root: str | Path, *, prefix: str = "step-", digits: int = 9) -> None:
        """`prefix` and `digits` make the names, `step-000000123`; nothing is created before the first save."""
        self.root, self.prefix, self.digits = Path(root), prefix, digits
        self._name = re.compile(rf"{re.escape(prefix)}(\d+)(?:\.(\d+))?")
        self._written_here: dict[Path, int] = {}

    # -- writing -------------------------------------------------------------------------------------------------------

    def begin(self, step: int, *, bytes_needed: int = 0) -> Draft:
        """Open a temporary folder for a checkpoint, after a look at the free space."""
        name = unique_name(f"{TEMPORARY}{step:0{self.digits}d}")
        with self._explained(f"opening a checkpoint of step {step}"):
            self.root.mkdir(parents=True, exist_ok=True)
            ask_for_space(self.root, bytes_needed)
            lock = WritingLock(self.root / (name + LOCK))
            try:
                (self.root / name).mkdir()
            except BaseException:
                lock.release()
                raise
        return Draft(self, self.root / name, lock)

    def join(self, name: str) -> Path:
        """The temporary folder that the first rank opened, for the others to write their own files into."""
        path = self.root / name
        if not path.is_dir():
            raise StorageError(
                f"{path}: this rank does not see the folder that the first rank opened. Checkpoints of several "
                "machines need a folder that all of them share."
            )
        return path

    def publish(
        self, position: Position, write: Callable[[Path], Mapping[str, FileRecord]], *, bytes_needed: int = 0
    ) -> Checkpoint:
        """Write a checkpoint in one go: `write` fills a folder and returns what it wrote."""
        draft = self.begin(position.step, bytes_needed=bytes_needed)
        try:
            with self._explained(f"writing step {position.step}"):
                records = write(draft.path)
            return draft.commit(position, records)
        finally:
            draft.abort()

    # -- finding -------------------------------------------------------------------------------------------------------

    def checkpoints(self, *, verify: bool = False, on_bytes: OnBytes | None = None) -> list[Checkpoint]:
        """All checkpoints, newest first; `verify` reads and hashes every file, else only sizes are compared."""
        found = [self._look(path) for path in self._paths()]
        ordered = sorted(found, key=lambda checkpoint: checkpoint.order, reverse=True)
        return [self.verify(each, on_bytes=on_bytes) for each in ordered] if verify else ordered

    def newest(self, *, verify: bool = True) -> Found:
        """The newest checkpoint that verifies; `skipped` says why newer ones do not."""
        listed = self.checkpoints()
        good: Checkpoint | None = None
        broken = [each for each in listed if each.status == "broken"]
        for each in listed:
            if each.status != "broken":
                good = self.verify(each) if verify else each
                if good.status != "broken":
                    break
                broken.append(good)
                good = None
        return Found(good, [Skipped(each.path, each.why or "") for each in broken if _concerns(each, good)])

    def verify(self, checkpoint: Checkpoint, *, on_bytes: OnBytes | None = None) -> Checkpoint:
        """The same checkpoint after every byte of it was read and compared."""
        if checkpoint.status == "broken" or checkpoint.manifest is None:
            return checkpoint
        for name, record in checkpoint.manifest.files.items():
            why = _what_is_wrong(checkpoint.path / name, record, on_bytes)
            if why is not None:
                return dataclasses.replace(checkpoint, status="broken", why=f"{name} {why}")
        return dataclasses.replace(checkpoint, status="verified")

    # -- clearing ------------------------------------------------------------------------------------------------------

    def prune(self, keep: int, *, protect: Collection[Path] = (), broken: bool = False) -> list[Path]:
        """Delete all but the newest `keep` whole checkpoints, never the newest that verifies; returns what went.

        Broken ones do not count, and stay unless `broken` asks for them too: they may be readable by other means.
        """
        if keep < 1:
            raise SettingError(f"keep={keep}: at least 1 checkpoint has to stay.")
        listed = self.checkpoints()
        whole = [each for each in listed if each.status != "broken"]
        if len(whole) <= keep and not broken:
            return []
        safe, found_broken = self._newest_sound(whole)
        if safe is None:  # nothing to fall back on: deleting could only make it worse
            return []
        unsound = {each.path for each in listed if each.status == "broken"} | {each.path for each in found_broken}
        old = [each.path for each in whole if each.path not in unsound][keep:]  # the first of them is the safe one
        doomed = [*old, *(sorted(unsound) if broken else [])]
        return [path for path in reversed(doomed) if path not in protect and self._delete(path)]

    def clear_orphans(self) -> list[Path]:
        """Delete temporary folders whose writer is gone; one whose writer lives, or may live, is left alone."""
        cleared: list[Path] = []
        for path in self._hidden(TRASH):
            _remove(path)
            cleared.append(path)
        for path in self._hidden(TEMPORARY):
            if path.name.endswith(LOCK):
                continue
            if self._is_abandoned(path):
                self._delete(path)
                cleared.append(path)
        self._clear_locks()
        return cleared

    # -- inside --------------------------------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        with self._explained("listing its checkpoints"):
            try:
                return [path for path in self.root.iterdir() if self._name.fullmatch(path.name) and path.is_dir()]
            except FileNotFoundError:
                return []

    def _hidden(self, prefix: str) -> list[Path]:
        with self._explained("looking for what was left behind"):
            try:
                return sorted(path for path in self.root.iterdir() if path.name.startswith(prefix))
            except FileNotFoundError:
                return []

    def _look(self, path: Path) -> Checkpoint:
        """What the manifest and the sizes of the files say."""
        found = self._name.fullmatch(path.name)
        assert found is not None
        step, attempt = int(found[1]), int(found[2] or 0)
        try:
            manifest = read_manifest(path)
        except StorageError as error:
            return Checkpoint(path, step, attempt, None, "broken", str(error))
        for name, record in manifest.files.items():
            why = _wrong_size(path / name, record)
            if why is not None:
                return Checkpoint(path, step, attempt, manifest, "broken", f"{name} {why}")
        return Checkpoint(path, step, attempt, manifest, "unverified")

    def _newest_sound(self, whole: list[Checkpoint]) -> tuple[Checkpoint | None, list[Checkpoint]]:
        """The newest that verifies, and those found broken before it. What this process wrote needs no reading."""
        broken: list[Checkpoint] = []
        for each in whole:
            if each.manifest is not None and self._written_here.get(each.path) == each.manifest.serial:
                return each, broken
            verified = self.verify(each)
            if verified.status == "verified":
                return verified, broken
            broken.append(verified)
        return None, broken

    def _next_serial(self) -> int:
        serials = [each.manifest.serial for each in map(self._look, self._paths()) if each.manifest is not None]
        return max(serials, default=0) + 1

    def _install(self, draft: Path, step: int, serial: int) -> Path:
        """Rename the finished draft to the first free name of its step."""
        attempt = 0
        while True:
            target = self.root / (f"{self.prefix}{step:0{self.digits}d}" + (f".{attempt}" if attempt else ""))
            try:
                # A rename onto an empty folder would succeed, onto any other it fails: nothing is ever replaced.
                os.rename(draft, target)
            except OSError as error:
                if not target.exists() or not draft.exists():
                    raise error
                attempt += 1
                continue
            self._written_here[target] = serial
            return target

    def _delete(self, path: Path) -> bool:
        """Out of sight first, so that a kill in between leaves no half checkpoint. False if somebody was faster."""
        trash = self.root / unique_name(f"{TRASH}{path.name.lstrip('.')}")
        with self._explained(f"deleting {path.name}"):
            try:
                os.rename(path, trash)
            except FileNotFoundError:
                return False
        self._written_here.pop(path, None)
        _remove(trash)
        return True

    def _is_abandoned(self, path: Path) -> bool:
        writer = WriterName.parse(path.name)
        alive = None if writer is None else writer.is_alive()
        if alive is None:
            return WritingLock.is_abandoned(path.with_name(path.name + LOCK))
        return not alive

    def _clear_locks(self) -> None:
        """Locks without their folder, whose writer is gone."""
        for path in self._hidden(TEMPORARY):
            folder = path.with_name(path.name.removesuffix(LOCK))
            if path.name.endswith(LOCK) and not folder.exists() and self._is_abandoned_lock(path):
                path.unlink(missing_ok=True)

    def _is_abandoned_lock(self, path: Path) -> bool:
        writer = WriterName.parse(path.name)
        alive = None if writer is None else writer.is_alive()
        return WritingLock.is_abandoned(path) if alive is None else not alive

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, self.root, doing) from error


class Draft:
    """A checkpoint that is being written: one of `commit` and `abort` ends it."""

    def __init__(self, folder: CheckpointFolder, path: Path, lock: WritingLock) -> None:
        self.path, self._folder, self._lock, self._open = path, folder, lock, True

    @property
    def name(self) -> str:
        """What other ranks give to `CheckpointFolder.join`."""
        return self.path.name

    def commit(
        self, position: Position, records: Mapping[str, FileRecord], *, versions: Mapping[str, str] | None = None
    ) -> Checkpoint:
        """Make what was written durable and publish it under its step; on any error the draft is gone."""
        if not self._open:
            raise StorageError(f"{self.path}: this draft was committed or aborted before.")
        try:
            with self._folder._explained(f"publishing step {position.step}"):
                return self._commit(position, dict(records), dict(versions or {}))
        finally:
            self.abort()

    def _commit(self, position: Position, records: dict[str, FileRecord], versions: dict[str, str]) -> Checkpoint:
        self._check_sizes(records)
        sync_tree(self.path, list(records))
        manifest = write_manifest(self.path, position, records, versions, self._folder._next_serial())
        sync_folder(self.path)
        target = self._folder._install(self.path, position.step, manifest.serial)
        self._open = False
        self._lock.release()
        sync_folder(self._folder.root)
        found = self._folder._name.fullmatch(target.name)
        assert found is not None
        return Checkpoint(target, position.step, int(found[2] or 0), manifest, "verified")

    def _check_sizes(self, records: dict[str, FileRecord]) -> None:
        for name, record in records.items():
            check_file_name(name)
            why = _wrong_size(self.path / name, record)
            if why is not None:
                raise StorageError(f"{self._folder.root}: nothing was published: {name} {why}.")

    def abort(self) -> None:
        """Remove the draft; after a commit this does nothing."""
        if self._open:
            self._open = False
            _remove(self.path)
        self._lock.release()

    # -- several ranks -------------------------------------------------------------------------------------------------

    def gather(self, ranks: Collection[int], *, timeout_s: float) -> dict[str, FileRecord]:
        """What the other ranks wrote, once all have handed it in; a rank that died hangs nobody beyond the timeout.

        It goes through the folder, not through a collective: those belong to the training, and a thread must not
        run one between the training's own.
        """
        deadline, records, waiting = time.monotonic() + timeout_s, dict[str, FileRecord](), set(ranks)
        while waiting:
            for rank in sorted(waiting):
                part = self.path / _part_name(rank)
                if part.exists():
                    records |= _handed_in(part, rank)
                    waiting.discard(rank)
            if waiting and time.monotonic() > deadline:
                missing = ", ".join(map(str, sorted(waiting)))
                raise StorageError(f"{self.path.parent}: rank {missing} wrote nothing in {timeout_s:g} s: not saved.")
            time.sleep(POLL_S if waiting else 0)
        return records


def hand_in(draft: Path, rank: int, records: Mapping[str, FileRecord]) -> None:
    """Say on another rank that its files are in the draft and durable."""
    sync_tree(draft, list(records))
    _leave_part(draft, rank, {"records": {name: dataclasses.asdict(record) for name, record in records.items()}})


def refuse(draft: Path, rank: int, why: str) -> None:
    """Say on another rank that its files will not come, so that the first does not wait for them."""
    with contextlib.suppress(OSError):  # no room even for this: the first rank waits until its timeout
        _leave_part(draft, rank, {"refused": why})


def _leave_part(draft: Path, rank: int, content: dict[str, Any]) -> None:
    part = draft / _part_name(rank)
    part.with_suffix(".part").write_text(json.dumps(content))
    os.rename(part.with_suffix(".part"), part)


def _handed_in(part: Path, rank: int) -> dict[str, FileRecord]:
    content = json.loads(part.read_bytes())
    if "refused" in content:
        raise StorageError(f"rank {rank} could not save: {content['refused']}")
    part.unlink()
    return {name: FileRecord(**record) for name, record in content["records"].items()}


def wait_published(draft: Path, *, timeout_s: float) -> None:
    """Return on another rank once the first has published the draft or given it up."""
    deadline = time.monotonic() + timeout_s
    while draft.exists():
        if time.monotonic() > deadline:
            raise StorageError(f"{draft}: the first rank did not publish the checkpoint within {timeout_s:g} s.")
        time.sleep(POLL_S)


def _part_name(rank: int) -> str:
    return f".rank-{rank:05d}.json"


# -- files -------------------------------------------------------------------------------------------------------------


def _wrong_size(path: Path, record: FileRecord) -> str | None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size == record.bytes:
        return None
    cut = "was cut: it " if size < record.bytes else ""
    return f"{cut}has {size:,} bytes of {record.bytes:,}"


def _what_is_wrong(path: Path, record: FileRecord, on_bytes: OnBytes | None) -> str | None:
    try:
        found = hash_file(path, on_bytes)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if found.bytes != record.bytes:
        return _wrong_size(path, record)
    if found.sha256 != record.sha256:
        return f"has changed since it was written: sha256 {found.sha256[:12]}… instead of {record.sha256[:12]}…"
    return None


def _concerns(broken: Checkpoint, good: Checkpoint | None) -> bool:
    """Whether it would have been taken instead, were it whole."""
    return good is None or broken.step > good.step or broken.order > good.order


def _remove(path: Path) -> None:
    """Delete a file or folder that is out of sight already; what cannot be deleted now is an orphan, cleared later."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
