"""Bytes that survive: writing, syncing and hashing files, who is writing, and what is said when the disk refuses."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nearpeak.errors import StorageError

__all__ = [
    "CHUNK_BYTES",
    "FileRecord",
    "WriterName",
    "WritingLock",
    "ask_for_space",
    "free_bytes",
    "hash_file",
    "record_files",
    "size_text",
    "storage_error",
    "sync_file",
    "sync_folder",
    "sync_tree",
    "unique_name",
]

CHUNK_BYTES = 16 * 2**20
"""Large enough that system calls cost nothing, small enough that an interrupt is noticed."""
SPARE_BYTES = 2**20
"""Folders, manifest and rounding to blocks, beyond the files themselves."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM)
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file must hold."""

    bytes: int
    sha256: str


# -- what reached the disk ---------------------------------------------------------------------------------------------


def sync_file(descriptor: int) -> None:
    """Return once the file's bytes are on the disk itself."""
    if sys.platform == "darwin":  # fsync there stops at the drive's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable; file systems that cannot sync folders keep names by other means."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path, names: list[str]) -> None:
    """Make the named files and every folder above them durable, up to and including `folder`."""
    for name in names:
        descriptor = os.open(folder / name, os.O_RDONLY)
        try:
            sync_file(descriptor)
        finally:
            os.close(descriptor)
    above = {folder} | {parent for name in names for parent in (folder / name).parents if parent.is_relative_to(folder)}
    for each in sorted(above, key=lambda path: len(path.parts), reverse=True):
        sync_folder(each)


def hash_file(path: Path, on_bytes: Callable[[int], object] | None = None) -> FileRecord:
    """Size and SHA-256 of a file; `on_bytes` hears of each chunk that was read."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        for chunk in _chunks(file):
            digest.update(chunk)
            size += len(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return FileRecord(size, digest.hexdigest())


def _chunks(file: BinaryIO) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while read := file.readinto(buffer):  # pyright: ignore[reportAttributeAccessIssue]
        yield buffer[:read]


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Size and hash of every file under a folder that somebody else filled."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


# -- room, and the lack of it ------------------------------------------------------------------------------------------


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write there."""
    usage = os.statvfs(folder)
    return usage.f_bavail * usage.f_frsize


def ask_for_space(folder: Path, needed_bytes: int) -> None:
    """Refuse before the first byte is written what cannot fit."""
    free = free_bytes(folder)
    if free < needed_bytes + SPARE_BYTES:
        raise StorageError(
            f"{folder}: a checkpoint needs {size_text(needed_bytes)}, {size_text(free)} are free. Nothing was written "
            f"and the checkpoints there are untouched. {_make_room(folder)}"
        )


def size_text(count: int) -> str:
    """`1.4 GB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def storage_error(error: OSError, folder: Path, doing: str) -> StorageError:
    """What a user can do about an error of the file system; the cause stays attached."""
    told = StorageError(f"{folder}: {_explanation(error, folder, doing)}")
    told.__cause__ = error
    return told


def _explanation(error: OSError, folder: Path, doing: str) -> str:
    if error.errno in _DISK_FULL:
        what = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
        return f"{what} ({doing}). Checkpoints saved before are untouched. {_make_room(folder)}"
    if error.errno == errno.EROFS:
        return f"the file system is read-only ({doing}). Mount it writable or save elsewhere."
    if error.errno in _REFUSED:
        return f"no permission ({doing}; this is user {os.getuid()}). Change its owner or mode, or save elsewhere."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"is or lies under a file, where a folder is needed ({doing}). Choose another folder."
    return f"{error.strerror or error} ({doing})."


def _make_room(folder: Path) -> str:
    return f"Make room, keep fewer (`nearpeak checkpoints {folder} --prune 1`), or save elsewhere."


# -- who is writing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriterName:
    """A process that no other can be mistaken for, as part of a folder's name: process ids are used again."""

    system: str
    """This boot of this machine and, on Linux, its space of process ids: containers count from 1 each."""
    pid: int
    started: int

    @classmethod
    def own(cls) -> WriterName:
        """This process."""
        pid = os.getpid()
        return cls(_system(), pid, _started(pid) or 0)

    @classmethod
    def parse(cls, name: str) -> WriterName | None:
        """The writer in the name of a temporary folder; None if it is not one of ours."""
        found = re.search(r"\.w([0-9a-f]{12})-(\d+)-(\d+)\.", name)
        return found and cls(found[1], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f".w{self.system}-{self.pid}-{self.started}."

    def is_alive(self) -> bool | None:
        """Whether it still runs; None if it lived on another machine or before a restart of this one."""
        if self.system != _system():
            return None
        return _started(self.pid) == self.started


_counter = itertools.count()


def unique_name(prefix: str) -> str:
    """A name that only this process uses, and only once."""
    return f"{prefix}{WriterName.own()}{next(_counter)}"


@functools.cache
def _system() -> str:
    parts = [str(os.uname().nodename)]
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _started(pid: int) -> int | None:
    """When a process started: in ticks since boot where Linux tells, which no change of the clock moves."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if sys.platform == "linux" else _started_elsewhere(pid)
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _started_elsewhere(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


class WritingLock:
    """A lock beside a temporary folder, held while it is written: other machines that share the disk see it too."""

    HELD = b"held\n"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(
            OSError
        ):  # a file system without locks: its temporary folders are left to their machine
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, self.HELD)

    def release(self) -> None:
        """Give it up and remove its file; more than once does no harm."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._descriptor)
        self._descriptor = -1

    @classmethod
    def is_abandoned(cls, path: Path) -> bool:
        """Whether somebody once held it and no longer does. Where that cannot be known: no."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.read(descriptor, len(cls.HELD)) == cls.HELD
        except OSError:
            return False
        finally:
            os.close(descriptor)
