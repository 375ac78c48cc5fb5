"""Saving while training goes on: the loop waits for a copy in memory at most, and mostly not even for that.

    saver = Saver(CheckpointFolder("out"), keep=3)
    for window in windows:
        forward and backward                    # weights and moments rest: a thread copies them meanwhile
        saver.wait_staged()                     # before the update changes them; usually 0 ms
        optimizer.step()
        saver.begin(position, {"weights": …, "optimizer": …}, {"buffers": …})      # returns in milliseconds
    saver.close()                               # the last save is durable, or its error is raised

One save at a time. What changes during forward passes (running statistics) is given as `changing` and copied at once;
should anything else change while it is being copied, the copy is thrown away, named, and copied at once next time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from nearpeak.errors import NearpeakError, SettingError, StorageError
from nearpeak.reason import Reason
from nearpeak.train.durable import FileRecord, storage_error
from nearpeak.train.nested import decode_document, flatten_state, unflatten_state
from nearpeak.train.snapshot import Buffer, Layout, plan, read, signature, stage, write, write_document
from nearpeak.train.storage import Checkpoint, CheckpointFolder, Draft, Position, hand_in, refuse, wait_published

__all__ = ["SaveTimes", "Saver", "load_state"]

logger = logging.getLogger("nearpeak")

NOTED_WAIT_MS = 100.0
"""What the training may wait for the disk before it is said."""
BACKGROUND_NICENESS = 5
"""Threads that write and hash yield to those that compute, where the system has a priority per thread."""


@dataclass(slots=True)
class SaveTimes:
    """What one save took. The training waits for `stall_ms` and `waited_for_previous_ms`, for nothing else."""

    bytes: int = 0
    stall_ms: float = 0.0
    """Copies made at once, setting up, and what was left of the other copies when the update came."""
    waited_for_previous_ms: float = 0.0
    staging_ms: float = 0.0
    """All copies, most of them beside the training."""
    write_ms: float = 0.0
    durable_ms: float = 0.0
    """From `begin` to a published checkpoint."""


class Saver:
    """Saves states into a folder of checkpoints, beside the training. Not to be shared between threads."""

    def __init__(
        self,
        folder: CheckpointFolder,
        *,
        keep: int = 3,
        policy: Literal["wait", "skip"] = "wait",
        on_failure: Literal["raise", "warn"] = "raise",
        rank: int = 0,
        ranks: int = 1,
        peer_timeout_s: float = 120.0,
        niceness: int = BACKGROUND_NICENESS,
    ) -> None:
        """`policy` is for a save that comes before the last one is done; `on_failure` for one that failed behind the
        training's back: raise at the next save, or warn and try again then."""
        if keep < 1:
            raise SettingError(f"keep={keep}: at least 1 checkpoint has to stay.")
        self.folder, self.keep, self.policy, self.on_failure = folder, keep, policy, on_failure
        self.rank, self.ranks, self.peer_timeout_s, self.niceness = rank, ranks, peer_timeout_s, niceness
        self.last = SaveTimes()
        self.saved: Checkpoint | None = None
        """The last checkpoint that is durable."""
        self.reasons: list[Reason] = []
        self._buffer = Buffer()
        self._current: _Save | None = None
        self._restless: set[str] = set()
        self._draft: Draft | None = None
        self._reserving: threading.Thread | None = None
        self._waited_ms = 0.0
        self._planned: tuple[Any, Layout] | None = None
        self._unreported: dict[int, str] = {}
        weakref.finalize(self, _report_at_exit, self._unreported)

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._current is not None and self._current.thread.is_alive()

    @property
    def again(self) -> bool:
        """Whether the last save was given up because something changed while it was copied: begin another."""
        return self._current is not None and bool(self._current.torn)

    @property
    def memory_bytes(self) -> int:
        """What staging holds on to between saves."""
        return self._buffer.bytes.numel()

    def reserve(self, steady: Mapping[str, Any], changing: Mapping[str, Any] | None = None) -> None:
        """Take the memory for such a state now, behind the training: the first save then stalls no more than others."""
        self._settle_previous()
        tensors, _, _ = _taken_apart(steady, changing or {})
        self._buffer.pinned = any(tensor.is_cuda for tensor in tensors.values())
        self._reserving = threading.Thread(
            target=self._buffer.touch, args=(self._layout_of(tensors),), name="nearpeak-reserve"
        )
        self._reserving.start()

    def open_draft(self, step: int, bytes_needed: int) -> str:
        """With several ranks: the first opens the folder and tells the others its name, to be given to `begin`."""
        self._settle_previous()
        self._abort_draft()
        self._draft = self.folder.begin(step, bytes_needed=bytes_needed)
        return self._draft.name

    def begin(
        self,
        position: Position,
        steady: Mapping[str, Any],
        changing: Mapping[str, Any] | None = None,
        *,
        draft: str | None = None,
        at_once: bool = False,
    ) -> Reason | None:
        """Start a save of nested states; returns why not where `policy="skip"` passes it over.

        Tensors of `steady` must not change before `wait_staged`; everything else is captured before this returns,
        with `at_once` (before an exit) those too.
        """
        if self.policy == "skip" and self.busy and not at_once:
            return self._skipped(position)
        self._settle_previous()
        start = time.perf_counter()
        save = _Save(self, position, draft, hurry=at_once)
        try:
            save.prepare(steady, changing or {}, self._restless, at_once)
        except BaseException:
            self._abort_draft()
            raise
        save.thread.start()
        self._current, self.last = save, save.times
        save.times.waited_for_previous_ms, self._waited_ms = self._waited_ms, 0.0
        save.times.stall_ms = _ms_since(start)
        return None

    def wait_staged(self) -> float:
        """Call before anything changes weights or optimizer state; returns the milliseconds that this took."""
        stalled_ms = self._release()
        if self._current is not None:
            self._warn_of_failure(self._current)
        return stalled_ms

    def wait_durable(self) -> Checkpoint | None:
        """Return once the save under way is on the disk; raises what went wrong with it."""
        self._release()
        if self._current is not None:
            self._current.thread.join()
            self._raise_failure(self._current)
        return self.saved

    def save(
        self, position: Position, steady: Mapping[str, Any], changing: Mapping[str, Any] | None = None
    ) -> Checkpoint | None:
        """Save and wait until it is durable: before an exit."""
        self.begin(position, steady, changing, at_once=True)
        return self.wait_durable()

    def close(self) -> None:
        """Wait for the last save and give the memory back; raises what went wrong with it, unless it was raised."""
        try:
            self._end_reserving()
            self._abort_draft()
            self.wait_durable()
        finally:
            self._current, self._buffer = None, Buffer()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        self._end_reserving()
        self._abort_draft()
        if self._current is not None:  # another error is on its way up: this one must not hide it
            self._current.release()
            self._current.thread.join()
            self._warn_of_failure(self._current)
        self._current, self._buffer = None, Buffer()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _layout_of(self, tensors: dict[str, torch.Tensor]) -> Layout:
        """Planned once: from save to save the same tensors lie in the same places."""
        found = signature(tensors)
        if self._planned is None or self._planned[0] != found:
            self._planned = (found, plan(tensors))
        return self._planned[1]

    def _end_reserving(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _abort_draft(self) -> None:
        if self._draft is not None:
            self._draft.abort()
            self._draft = None

    def _settle_previous(self) -> None:
        """Wait for the save before this one; raise or warn if it failed."""
        self._end_reserving()
        if self._current is None:
            return
        start = time.perf_counter()
        self._release()
        self._current.thread.join()
        self._waited_ms += _ms_since(start)
        self._note_wait(self._current)
        if self.on_failure == "raise":
            self._raise_failure(self._current)
        self._warn_of_failure(self._current)
        self._current = None

    def _note_wait(self, save: _Save) -> None:
        """Said once: from then on every save tells its own wait."""
        if self._waited_ms < NOTED_WAIT_MS or any(reason.choice == "checkpoint=waits" for reason in self.reasons):
            return
        because = (
            f"the save of step {save.position.step} was not on the disk yet when the next one came, so training waited "
            f"{self._waited_ms / 1e3:.2g} s: save less often, or to a faster disk."
        )
        self.reasons.append(Reason("checkpoint=waits", because, {"waited_ms": self._waited_ms}))
        logger.warning("nearpeak: %s", self.reasons[-1])

    def _release(self) -> float:
        """Wait until the tensors may change; 0 ms after the first time."""
        save = self._current
        if save is None or save.released:
            return 0.0
        start = time.perf_counter()
        save.release()
        stalled_ms = _ms_since(start)
        save.times.stall_ms += stalled_ms
        if save.torn:
            self._note_torn(save)
        return stalled_ms

    def _raise_failure(self, save: _Save) -> None:
        if save.published:  # what failed came after it: the state is safe, and a warning is enough
            self._warn_of_failure(save)
            return
        error, save.failure = save.failure, None
        self._unreported.clear()
        if error is not None:
            raise error

    def _warn_of_failure(self, save: _Save) -> None:
        self._unreported.clear()
        if save.failure is not None and not save.warned:
            save.warned = True
            warnings.warn(save.told(), RuntimeWarning, stacklevel=4)

    def _note_torn(self, save: _Save) -> None:
        self._restless.update(save.torn)
        named = ", ".join(save.torn[:3]) + (f" and {len(save.torn) - 3} more" if save.torn[3:] else "")
        because = (
            f"step {save.position.step} was not saved: {named} changed while being copied; from now on such tensors "
            "are copied at once."
        )
        self.reasons.append(Reason("checkpoint=given up", because, {"step": save.position.step}))

    def _skipped(self, position: Position) -> Reason:
        assert self._current is not None
        because = (
            f"step {position.step} is not saved: the save of step {self._current.position.step} is still under way."
        )
        reason = Reason("checkpoint=skipped", because, {"step": position.step})
        self.reasons.append(reason)
        return reason


class _Save:
    """One save: prepared by the training's thread, carried out by its own."""

    def __init__(self, saver: Saver, position: Position, draft: str | None, hurry: bool) -> None:
        self.saver, self.position, self.times = saver, position, SaveTimes()
        self.released = self.warned = False
        self.torn: list[str] = []
        self.failure: Exception | None = None
        self.published = False
        self._draft_name, self._hurry, self._begun = draft, hurry, time.perf_counter()
        self._staged = threading.Event()
        self._deciding = threading.Lock()
        self._decided = False
        self._on_device: torch.cuda.Event | None = None
        # Not a daemon: an interpreter that ends waits for it, so that no save is lost.
        self.thread = threading.Thread(target=self._run, name="nearpeak-save")

    # -- in the training's thread --------------------------------------------------------------------------------------

    def prepare(
        self, steady: Mapping[str, Any], changing: Mapping[str, Any], restless: set[str], at_once: bool
    ) -> None:
        """Take everything apart, copy what cannot wait, queue what a GPU copies by itself."""
        tensors, self._document, urgent = _taken_apart(steady, changing)
        self._tensors, self._layout = tensors, self.saver._layout_of(tensors)
        self._buffer = self.saver._buffer
        self._buffer.pinned = self._buffer.pinned or any(tensor.is_cuda for tensor in tensors.values())
        self._buffer.fit(self._layout)
        self.times.bytes = self._layout.total_bytes
        now = set(tensors) if at_once else urgent | (restless & set(tensors))
        stage(tensors, self._layout, self._buffer, now)
        later = [name for name in tensors if name not in now]
        self._versions = {name: _version(tensors[name]) for name in later}
        self._queue_on_device([name for name in later if tensors[name].is_cuda], at_once)
        self._for_thread = [name for name in later if not tensors[name].is_cuda]

    def _queue_on_device(self, names: list[str], at_once: bool) -> None:
        """On a stream of their own, behind the update that made the values, beside the kernels that come."""
        if not self._buffer.pinned:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            stage(self._tensors, self._layout, self._buffer, names)
            self._on_device = torch.cuda.Event()
            self._on_device.record(stream)
        if at_once:
            self._on_device.synchronize()

    def release(self) -> None:
        """From here on the training may change its tensors."""
        self._staged.wait()
        if self._on_device is not None:  # the GPU waits, not the loop
            self._on_device.wait(torch.cuda.current_stream())
        with self._deciding:  # a write that was under way when the thread looked shows only now
            if not self._decided:
                self.torn = self.torn or self._changed()
        self.released = True
        self._tensors = {}

    def told(self) -> str:
        """The failure as a sentence."""
        state = "is saved, but" if self.published else "was not saved:"
        return f"The checkpoint of step {self.position.step} {state} {self.failure}"

    # -- in its own thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._stage_rest()
            if not self.torn:
                self._write()
        except OSError as error:
            self.failure = storage_error(error, self.saver.folder.root, f"saving step {self.position.step}")
        except Exception as error:  # noqa: BLE001  carried to the training's thread, which raises it
            self.failure = error
        finally:
            if self.failure is not None:
                self.saver._unreported[0] = self.told()
            self._staged.set()

    def _stage_rest(self) -> None:
        start = time.perf_counter()
        stage(self._tensors, self._layout, self._buffer, self._for_thread)
        if self._on_device is not None:
            self._on_device.synchronize()
        self.times.staging_ms = _ms_since(start)
        self.torn = self._changed()
        self._staged.set()

    def _changed(self) -> list[str]:
        """What was written to since `prepare`, by the count that torch keeps of each tensor's writes."""
        held = self._tensors
        return [name for name, version in self._versions.items() if name in held and _version(held[name]) != version]

    def _write(self) -> None:
        if not self._hurry:
            _yield_to_training(self.saver.niceness)
        start = time.perf_counter()
        checkpoint = self._write_first() if self.saver.rank == 0 else self._write_other()
        self.times.write_ms, self.times.durable_ms = _ms_since(start), _ms_since(self._begun)
        if checkpoint is not None:
            self.saver.saved, self.published = checkpoint, True
            self.saver.folder.prune(self.saver.keep, protect=[checkpoint.path])

    def _write_first(self) -> Checkpoint | None:
        saver = self.saver
        draft, saver._draft = saver._draft, None
        needed = self._layout.total_bytes + len(str(self._document))
        draft = draft or saver.folder.begin(self.position.step, bytes_needed=needed)
        try:
            records = self._write_files(draft.path)
            records |= draft.gather(range(1, saver.ranks), timeout_s=saver.peer_timeout_s)
            return draft.commit(self.position, records, versions=_versions()) if self._is_sound() else None
        finally:
            draft.abort()

    def _is_sound(self) -> bool:
        """The last moment to give it up."""
        with self._deciding:
            self._decided = True
            return not self.torn

    def _write_other(self) -> None:
        assert self._draft_name is not None
        path = self.saver.folder.join(self._draft_name)
        try:
            records = self._write_files(path)
            if not self._is_sound():
                refuse(path, self.saver.rank, f"{', '.join(self.torn[:3])} changed while being copied")
                return
            hand_in(path, self.saver.rank, records)
        except (OSError, NearpeakError) as error:
            refuse(path, self.saver.rank, str(error))
            raise
        wait_published(path, timeout_s=self.saver.peer_timeout_s)

    def _write_files(self, folder: Path) -> dict[str, FileRecord]:
        tensors, document = _file_names(self.saver.rank)
        return {
            tensors: write(folder / tensors, self._layout, self._buffer),
            document: write_document(folder / document, self._document),
        }


# -- states ------------------------------------------------------------------------------------------------------------


def load_state(checkpoint: Checkpoint, rank: int = 0) -> dict[str, Any]:
    """What was given to `begin` on that rank, both parts together; every tensor is on the CPU and its own."""
    tensors, document = (checkpoint.path / name for name in _file_names(rank))
    try:
        return unflatten_state(decode_document(document.read_bytes()), read(tensors))
    except FileNotFoundError:
        there = len(list(checkpoint.path.glob("state-*.json")))
        raise StorageError(f"{checkpoint.path}: no state of rank {rank}: it was saved by {there} ranks.") from None
    except OSError as error:
        raise storage_error(error, checkpoint.path, "reading a checkpoint") from error


def _file_names(rank: int) -> tuple[str, str]:
    return f"state-{rank:05d}.safetensors", f"state-{rank:05d}.json"


def _taken_apart(
    steady: Mapping[str, Any], changing: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, Any], set[str]]:
    """All tensors by path, the document, and the names of those to be copied at once."""
    resting, document = flatten_state(dict(steady))
    moving, more = flatten_state(dict(changing))
    twice = sorted((set(document) & set(more)) | (set(resting) & set(moving)))
    if twice:
        raise SettingError(f"{', '.join(twice)}: given both as steady and as changing state.")
    return {**resting, **moving}, {**document, **more}, set(moving)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _versions() -> dict[str, str]:
    import numpy

    cuda = {} if torch.version.cuda is None else {"cuda": torch.version.cuda}
    return {"torch": torch.__version__, "numpy": numpy.__version__, **cuda}


def _yield_to_training(niceness: int) -> None:
    """Only this thread and those it starts; the thread ends with the save, so nothing has to be undone."""
    if sys.platform == "linux" and niceness > 0:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def _report_at_exit(unreported: dict[int, str]) -> None:
    """A failure that nobody asked for any more: the program ended right after it began to save."""
    for told in unreported.values():
        sys.stderr.write(f"nearpeak: {told}\n")
