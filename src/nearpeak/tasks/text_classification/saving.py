"""Publish a model folder whole or not at all, and never lose the one that stood there before.

Everything is written into a folder beside the target, synced to disk, and then exchanged with it in one rename.
A run that dies at any moment leaves the former model where it was.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nearpeak.errors import NearpeakError, SettingError

__all__ = ["Publisher", "SaveError", "replace_file"]

AT_CURRENT_FOLDER = -100
EXCHANGE = 2
SPARE_BYTES = 16 * 2**20


class SaveError(NearpeakError):
    """The model could not be written; the former one is whole."""


class Publisher:
    """Owner of the output folder during a run."""

    def __init__(self, folder: str | Path, *, overwrite: bool) -> None:
        self.folder = Path(folder).absolute()
        self.published = False
        """Whether this run has put a model there."""
        self._work = self.folder.parent / f".{self.folder.name}.partial"
        self._former = self._work / "former"
        self._refuse_existing(overwrite)
        self._lock = self._claim()
        self._recover()

    @property
    def occupied(self) -> bool:
        """Whether a model (or anything) stands in the folder."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def _refuse_existing(self, overwrite: bool) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise SettingError(f"output.folder={str(self.folder)!r} is a file; name a folder.")
        if self.occupied and not overwrite:
            raise SettingError(
                f"output.folder={str(self.folder)!r} exists and is not empty. Name another one (--output), or give "
                "--force: "
                "what stands there is then replaced when the new model is saved, not before."
            )
        if self.occupied and not (self.folder / "config.json").exists():
            raise SettingError(
                f"output.folder={str(self.folder)!r} holds something other than a model (no config.json); --force "
                "replaces "
                "models only. Name another folder."
            )

    def _claim(self) -> IO[str] | None:
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            return _locked(self._work / "lock")
        except BlockingIOError:
            raise SettingError(
                f"output.folder={str(self.folder)!r}: another run is writing there. Wait for it, or name another "
                "folder."
            ) from None
        except OSError as error:
            raise SettingError(f"output.folder={str(self.folder)!r}: cannot be written: {error.strerror}.") from None

    def _recover(self) -> None:
        """What a killed run left: a former model that was just being replaced comes back, half-written ones go."""
        if self._former.exists() and not self.folder.exists():
            self._former.rename(self.folder)
        for item in self._work.iterdir():
            if item.is_dir():
                shutil.rmtree(item)

    def check_space(self, model_bytes: int) -> None:
        """Better to hear of a full disk before training than after."""
        free = shutil.disk_usage(self._work).free
        if free < model_bytes + SPARE_BYTES:
            raise SaveError(
                f"{self.folder.parent}: {free / 1e6:,.0f} MB are free, the model takes {model_bytes / 1e6:,.0f} MB"
                f"{' beside the former one' if self.occupied else ''}. Make room, or set output.folder to another disk."
            )

    @property
    def scratch(self) -> Path:
        """A folder beside the target, for what is written during the run."""
        return self._work

    @contextmanager
    def publish(self, subfolder: str | None = None) -> Iterator[Path]:
        """Write into the folder given; on leaving, it takes the place of the model (or of a subfolder beside it)."""
        stage = self._work / "stage"
        try:
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir()
            yield stage
            _sync_tree(stage)
            self._swap(stage, self.folder / subfolder if subfolder else self.folder)
        except Exception as error:
            shutil.rmtree(stage, ignore_errors=True)
            if not _is_disk_error(error):
                raise
            raise SaveError(self._message(error)) from error
        self.published = self.published or subfolder is None

    def _swap(self, stage: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            stage.rename(target)
        elif not _exchange(stage, target):
            target.rename(self._former)  # two renames where one cannot do: `_recover` mends a death in between
            stage.rename(target)
        _sync_folder(target.parent)
        for left in (stage, self._former):
            shutil.rmtree(left, ignore_errors=True)

    def _message(self, error: Exception) -> str:
        state = (
            f"The model saved before in {self.folder} is whole" if self.occupied else "No model had been saved before"
        )
        reason = "the disk is full" if _is_disk_full(error) else str(error).rstrip(".")
        way_out = "Make room, or set output.folder to another disk."
        return f"{self.folder}: the model could not be saved: {reason}. {state}. {way_out}"

    def close(self) -> None:
        """Give the folder free and take away what was only ours."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        shutil.rmtree(self._work, ignore_errors=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SaveError(f"{path}: could not be written: {error.strerror}. What stood there before is whole.") from error


def _locked(path: Path) -> IO[str]:
    """The open lock file; BlockingIOError if another process holds it."""
    file = path.open("w")
    try:
        import fcntl
    except ImportError:  # Windows has no fcntl, and refuses to rename what another process has open anyway
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:
        pass  # a network file system without locks: two runs at once are then the user's own care
    return file


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where kernel or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False  # not Linux
    return rename(AT_CURRENT_FOLDER, os.fsencode(first), AT_CURRENT_FOLDER, os.fsencode(second), EXCHANGE) == 0


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            _sync(path, os.O_RDONLY)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # Windows cannot open folders
        _sync(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_disk_full(error: BaseException) -> bool:
    """A full disk: an OSError, or the word of a writer in another language (safetensors)."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in full
    return any(f"os error {number}" in str(error) for number in full)


def _is_disk_error(error: BaseException) -> bool:
    return isinstance(error, OSError) or _is_disk_full(error) or "I/O error" in str(error)


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """What `from_pretrained` loads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
