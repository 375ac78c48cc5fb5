"""A Trainer's own way of saving, made atomic: it writes into a temporary folder, which is renamed when it is whole.

files → fsync → manifest with sizes and hashes → fsync → rename to checkpoint-N → fsync of the folder above. Whatever
ends the process and whenever, `checkpoint-N` is there with all of its files or it is not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from nearpeak.errors import StorageError
from nearpeak.integrations._verify import checkpoints_in, folder_of, looks_whole
from nearpeak.train.durable import free_bytes, record_files, storage_error, sync_folder, sync_tree, unique_name
from nearpeak.train.manifest import MANIFEST, Position, write_manifest
from nearpeak.train.storage import TRASH, CheckpointFolder, Draft, hand_in, refuse, wait_published

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["Publisher", "replace_folder", "rotate"]

logger = logging.getLogger("nearpeak")
Extra = Callable[[Path], None]
Stand = Callable[[], tuple[Position, dict[str, str]]]
FULL_BYTES = 2**20
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
RENAME_EXCHANGE, AT_FDCWD = 2, -100


class Publisher:
    """Saves one trainer's checkpoints."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        args = trainer.args
        members = args.save_on_each_node and distributed.is_initialized()
        self._leader = args.process_index - args.local_process_index if members else 0
        self._pushes = False

    def save(self, trial: Any, save: Callable[[], None], extra: Extra, stand: Stand) -> Path:
        """Run the trainer's own `save` and publish what it wrote; every rank calls it.

        `extra` writes what this rank adds; `stand` says where the training stands, with versions of libraries.
        """
        run_dir = Path(self._trainer._get_output_dir(trial))
        step = self._trainer.state.global_step
        folder = folder_of(run_dir)
        draft, staging = self._open(folder, step)
        target = run_dir / f"checkpoint-{step}"
        try:
            with _explained(run_dir, f"saving {target.name}"):
                self._write(staging, target, save)
                extra(staging / target.name)
                self._finish(folder, draft, staging / target.name, stand)
        except Exception as error:
            if draft is None:
                refuse(staging, self._trainer.args.process_index, str(error)[:300])
            raise
        finally:
            if draft is not None:
                draft.abort()
        self._after(run_dir, target)
        return target

    # -- the temporary folder ------------------------------------------------------------------------------------------

    def _open(self, folder: CheckpointFolder, step: int) -> tuple[Draft | None, Path]:
        """Every rank learns the name of the folder, or why there is none."""
        draft, answer = None, None
        if self._trainer.args.process_index == self._leader:
            try:
                draft = folder.begin(step, bytes_needed=_state_bytes(self._trainer))
                answer = (draft.name, None)
            except StorageError as error:
                answer = ("", str(error))
        name, why = self._from_leader(answer)
        if why is not None:
            raise StorageError(why)
        return draft, folder.root / name

    def _from_leader(self, answer: tuple[str, str | None] | None) -> tuple[str, str | None]:
        count = self._trainer.args.world_size
        if count == 1 or not distributed.is_initialized():
            assert answer is not None
            return answer
        answers: list[Any] = [None] * count
        distributed.all_gather_object(answers, answer)
        refused = next((each for each in answers if each is not None and each[1] is not None), None)
        return refused or answers[self._leader]

    def _write(self, staging: Path, target: Path, save: Callable[[], None]) -> None:
        """The trainer's own save, which takes the temporary folder for its output folder."""
        self._pushes = False

        def push_later(checkpoint_folder: str) -> None:
            self._pushes = True

        shadows = {"_get_output_dir": lambda trial=None: str(staging), "_push_from_checkpoint": push_later}
        before = {name: vars(self._trainer)[name] for name in shadows if name in vars(self._trainer)}
        vars(self._trainer).update(shadows)
        try:
            save()
        finally:
            for name in shadows:
                vars(self._trainer).pop(name, None)
            vars(self._trainer).update(before)
        self._correct_best(staging / target.name, target)

    def _correct_best(self, written: Path, target: Path) -> None:
        """The best checkpoint is this one: by the name that it will have, also in its own state."""
        state = self._trainer.state
        if state.best_model_checkpoint == str(written):
            state.best_model_checkpoint = str(target)
            if self._trainer.args.should_save:
                state.save_to_json(str(written / "trainer_state.json"))

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _finish(self, folder: CheckpointFolder, draft: Draft | None, written: Path, stand: Stand) -> None:
        staging, target = written.parent, folder.root / written.name
        timeout_s = float(self._trainer.args.ddp_timeout)
        if draft is None:
            sync_tree(written, [path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file()])
            hand_in(staging, self._trainer.args.process_index, {})
            wait_published(staging, timeout_s=timeout_s)
            if not (target / MANIFEST).exists():
                raise StorageError(f"{target}: the first rank could not publish it; its own message says why.")
            return
        draft.gather(self._members(), timeout_s=timeout_s)
        self._publish(folder, written, stand)

    def _members(self) -> list[int]:
        args = self._trainer.args
        if not distributed.is_initialized():
            return []
        count = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if args.save_on_each_node else args.world_size
        return [rank for rank in range(self._leader, self._leader + count) if rank != self._leader]

    def _publish(self, folder: CheckpointFolder, written: Path, stand: Stand) -> None:
        records = record_files(written)
        sync_tree(written, list(records))
        position, versions = stand()
        serials = [each.manifest.serial for each in folder.checkpoints() if each.manifest is not None]
        write_manifest(written, position, records, versions, max(serials, default=0) + 1)
        sync_folder(written)
        replace_folder(written, folder.root / written.name)
        sync_folder(folder.root)

    def _after(self, run_dir: Path, target: Path) -> None:
        args = self._trainer.args
        if args.process_index == self._leader:
            best = self._trainer.state.best_model_checkpoint
            rotate(run_dir, args.save_total_limit, [target, *([Path(best)] if best else [])])
        if self._pushes:
            self._trainer._push_from_checkpoint(str(target))


def replace_folder(written: Path, target: Path) -> None:
    """Rename; a folder that has the name already is exchanged for it, so that one of the two is always there."""
    if not target.exists():
        os.rename(written, target)
    elif not _exchange(written, target):
        # A file system that cannot exchange: the old one steps aside, and comes back should the rename fail.
        aside = written.with_name(written.name + ".replaced")
        os.rename(target, aside)
        try:
            os.rename(written, target)
        except OSError:
            os.rename(aside, target)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Linux swaps two names in one step; False where it cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0


def rotate(run_dir: Path, limit: int | None, protected: list[Path]) -> list[Path]:
    """Keep at most `limit` checkpoints, as transformers does, but by step and never one of `protected`.

    Those that are not whole go first. What goes is renamed first: a kill in between leaves no half checkpoint.
    """
    if limit is None or limit <= 0:
        return []
    present = checkpoints_in(run_dir)[::-1]
    kept = {path.resolve() for path in protected}
    doomed = [path for path in present if path.resolve() not in kept]
    doomed.sort(key=looks_whole)  # stable: among equals the oldest step first
    surplus = len(present) - max(limit, len(present) - len(doomed))
    return [path for path in doomed[: max(surplus, 0)] if _delete(path)]


def _delete(path: Path) -> bool:
    trash = path.with_name(unique_name(f"{TRASH}{path.name}"))
    try:
        os.rename(path, trash)
    except OSError as error:
        logger.warning("nearpeak: %s could not be deleted: %s", path, error.strerror)
        return False
    shutil.rmtree(trash, ignore_errors=True)
    return True


def _state_bytes(trainer: Trainer) -> int:
    """What a save will write, as far as memory tells: weights, and the state of the optimizer."""
    assert trainer.model is not None
    tensors = {id(t): t for t in (*trainer.model.parameters(), *trainer.model.buffers())}
    if not trainer.args.save_only_model:
        states = getattr(trainer.optimizer, "state", {})
        tensors |= {id(t): t for state in states.values() for t in state.values() if isinstance(t, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@contextlib.contextmanager
def _explained(run_dir: Path, doing: str) -> Iterator[None]:
    """What the disk refuses becomes a StorageError, whoever was writing; what a script raises itself stays."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise storage_error(error, run_dir, doing) from error
    except Exception as error:
        refused = _refused(error, run_dir)
        if refused is None:
            raise
        raise storage_error(refused, run_dir, doing) from error


def _refused(error: Exception, run_dir: Path) -> OSError | None:
    """The error of the file system behind those of safetensors and torch, which put it into words."""
    if type(error).__name__ == "SafetensorError" and (found := re.search(r"os error (\d+)", str(error))):
        return OSError(int(found[1]), os.strerror(int(found[1])))
    if re.search("inline_container|PytorchStreamWriter|PyTorchFileWriter", str(error)):
        full = free_bytes(run_dir) < FULL_BYTES
        return OSError(errno.ENOSPC if full else errno.EIO, os.strerror(errno.ENOSPC) if full else str(error)[:200])
    return None
