"""Resuming the drop-in: which checkpoint is taken, whether it fits, and what makes it go on bit for bit.

transformers restores weights, optimizer, schedule, scaler and random state. What it does not keep is kept here, in the
checkpoint beside its own files: how windows were regrouped, in which order the epoch was, and what the loss of the
steps since the last log adds up to.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import distributed

from nearpeak.errors import ResumeError, StorageError
from nearpeak.integrations._geometry import (
    Geometry,
    check_geometry,
    cursor_of,
    geometry_of,
    machine,
    to_json,
    versions,
    world_of_plain,
)
from nearpeak.integrations._publish import Publisher
from nearpeak.integrations._stream import Stream
from nearpeak.integrations._verify import STATE, Verdict, checkpoints_in, folder_of, verify
from nearpeak.train.manifest import Position

if TYPE_CHECKING:
    from transformers import Trainer

    from nearpeak.integrations._regroup import Regrouping, Report

__all__ = ["NoCheckpointError", "Session", "find_checkpoint"]

logger = logging.getLogger("nearpeak")


class NoCheckpointError(ResumeError, ValueError):
    """`resume_from_checkpoint=True` where nothing can be resumed; a ValueError as in transformers."""


# -- which one ---------------------------------------------------------------------------------------------------------


def find_checkpoint(trainer: Trainer, wanted: Any) -> Verdict | None:
    """The checkpoint to resume from: the newest whole one for True, the named one if it is whole, none for None."""
    if wanted is None or wanted is False:
        return None
    found, error = _from_first_rank(trainer, lambda: _found(trainer, wanted))
    if error is not None:
        raise error
    return found


def _found(trainer: Trainer, wanted: Any) -> tuple[Verdict | None, Exception | None]:
    try:
        output_dir = Path(trainer.args.output_dir or ".")
        return (_newest(output_dir) if wanted is True else _named(Path(wanted))), None
    except (ResumeError, StorageError) as error:
        return None, error


def _from_first_rank(trainer: Trainer, find: Any) -> tuple[Verdict | None, Exception | None]:
    """One rank reads all of it, the others hear of it."""
    if trainer.args.world_size == 1 or not distributed.is_initialized():
        return find()
    box = [find() if trainer.args.process_index == 0 else None]
    distributed.broadcast_object_list(box, 0)
    assert box[0] is not None
    return box[0]


def _newest(output_dir: Path) -> Verdict:
    skipped: list[Verdict] = []
    for path in checkpoints_in(output_dir):
        verdict = verify(path)
        if verdict.why is None:
            return verdict
        logger.warning("nearpeak: %s was passed over: %s", path, verdict.why)
        skipped.append(verdict)
    broken = "; ".join(f"{verdict.path.name}: {verdict.why}" for verdict in skipped)
    raise NoCheckpointError(
        f"No valid checkpoint found in output directory ({output_dir})"
        + (f", all that are there are broken: {broken}." if broken else ": it holds no folder checkpoint-N.")
        + " Leave resume_from_checkpoint out to train from the start, or name a checkpoint elsewhere."
    )


def _named(path: Path) -> Verdict:
    verdict = verify(path)
    if verdict.why is None:
        return verdict
    others = [str(each) for each in checkpoints_in(path.parent) if each != path]
    way_out = f"Others are there: {', '.join(others[:3])}; " if others else ""
    raise StorageError(
        f"{path} cannot be resumed from: {verdict.why}. {way_out}resume_from_checkpoint=True takes the newest whole."
    )


# -- one training ------------------------------------------------------------------------------------------------------


class Session:
    """What one call of `train` keeps about its saving and resuming."""

    def __init__(self, trainer: Trainer, regrouping: Regrouping, report: Report, checkpoint: Verdict | None) -> None:
        self.trainer, self._regrouping, self._report = trainer, regrouping, report
        self.checkpoint = checkpoint
        self._rank: dict[str, Any] = {}
        if checkpoint is not None:
            self._accept(checkpoint)
        step = 0 if checkpoint is None else _step(checkpoint.path)
        self.stream = Stream(trainer, report, self._rank.get("stream"), step)
        self._publisher = Publisher(trainer)

    @property
    def path(self) -> str | None:
        """What transformers is told to resume from."""
        return None if self.checkpoint is None else str(self.checkpoint.path)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Training loaders go through us meanwhile, whoever makes them; what dead writers left behind is cleared."""
        trainer = self.trainer
        if trainer.args.process_index == 0 and Path(trainer.args.output_dir or ".").is_dir():
            folder_of(Path(trainer.args.output_dir or ".")).clear_orphans()
        own, shadowed = trainer.get_train_dataloader, vars(trainer).get("get_train_dataloader")
        trainer.get_train_dataloader = lambda: self.stream.adopt(own())
        try:
            yield
        finally:
            del trainer.get_train_dataloader
            if shadowed is not None:
                trainer.get_train_dataloader = shadowed

    # -- before --------------------------------------------------------------------------------------------------------

    def _accept(self, checkpoint: Verdict) -> None:
        """Refuse what does not fit, restore what fits exactly, and say what does not."""
        now, doubts = geometry_of(self.trainer), [f"it lacks the {lacking}" for lacking in checkpoint.lacks]
        saved = _saved_geometry(checkpoint, now)
        if not self.trainer.args.auto_find_batch_size:
            changed = check_geometry(checkpoint.path, saved, now, self.trainer)
            doubts += [changed] if changed else []
        if checkpoint.manifest is not None:
            doubts += _differences(checkpoint, self.trainer)
            self._rank = _read_rank(checkpoint.path, self.trainer.args.process_index)
            same = (saved.ranks, saved.per_device) == (now.ranks, now.per_device)
            if same and self._rank.get("windows"):
                self._regrouping.restore(self._rank["windows"])
        self._say(checkpoint, doubts)

    def _say(self, checkpoint: Verdict, doubts: list[str]) -> None:
        if doubts:
            because = f"not claimed to be bit for bit what an uninterrupted run gives: {'; '.join(doubts)}"
            self._report.say(f"resume={checkpoint.path}", because, level=logging.WARNING)
        else:
            self._report.say(f"resume={checkpoint.path}", "every file is what was saved; same geometry, same libraries")

    # -- during --------------------------------------------------------------------------------------------------------

    def save(self, trial: Any, save: Callable[[], None]) -> None:
        """Publish what the trainer's own `save` writes, and what a resumed training needs besides."""
        self._publisher.save(trial, save, self._write_rank, self._position)

    def restore_loss(self) -> None:
        """The loss since the last log: the first one logged after a resume is that of the uninterrupted run."""
        trainer: Any = self.trainer
        loss = self._rank.get("loss")
        if loss is None or not hasattr(trainer, "_tr_loss"):
            return
        trainer._tr_loss += loss["sum"]
        trainer._globalstep_last_logged = loss["last_logged"]
        trainer._total_loss_scalar -= loss["sum"]  # the mean over this call's own steps stays what it is

    def _position(self) -> tuple[Position, dict[str, str]]:
        geometry = geometry_of(self.trainer)
        step = self.trainer.state.global_step
        extra = {"geometry": to_json(geometry), "machine": machine(self.trainer), "trainer": "transformers"}
        position = Position(
            step=step,
            cursor=cursor_of(geometry, step),
            global_batch=geometry.global_batch,
            ranks=geometry.ranks,
            extra=extra,
        )
        return position, versions()

    def _write_rank(self, folder: Path) -> None:
        """What this rank adds to a checkpoint."""
        trainer: Any = self.trainer
        state: dict[str, Any] = {"windows": self._regrouping.choice(), "stream": self.stream.state()}
        if hasattr(trainer, "_tr_loss"):
            state["loss"] = {"sum": float(trainer._tr_loss), "last_logged": trainer._globalstep_last_logged}
        folder.mkdir(parents=True, exist_ok=True)
        _rank_file(folder, self.trainer.args.process_index).write_text(json.dumps(state))


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"nearpeak-rank-{rank}.json"


def _read_rank(folder: Path, rank: int) -> dict[str, Any]:
    file = _rank_file(folder, rank)
    return json.loads(file.read_bytes()) if file.is_file() else {}


def _step(folder: Path) -> int:
    return int(json.loads((folder / STATE).read_bytes())["global_step"])


def _saved_geometry(checkpoint: Verdict, now: Geometry) -> Geometry:
    """Of a plain checkpoint only a device's batch and the ranks are known: the rest is taken for the same."""
    if checkpoint.manifest is not None:
        return Geometry(**checkpoint.manifest.extra["geometry"])
    state = json.loads((checkpoint.path / STATE).read_bytes())
    per_device, ranks = state.get("train_batch_size") or now.per_device, world_of_plain(checkpoint.path)
    if (per_device, ranks) == (now.per_device, now.ranks):
        return now
    logger.warning(
        "nearpeak: %s was saved with %s per device on %s ranks, this is %s; its accumulation is not known, so nobody "
        "can tell whether its steps took as many samples.", checkpoint.path, per_device, ranks, now.split,
    )  # fmt: skip
    return now


def _differences(checkpoint: Verdict, trainer: Trainer) -> list[str]:
    """Libraries and hardware that are not those of the checkpoint."""
    assert checkpoint.manifest is not None
    here = versions() | machine(trainer)
    there = checkpoint.manifest.versions | checkpoint.manifest.extra.get("machine", {})
    return [f"{name} {there[name]} became {here[name]}" for name in here if there.get(name, here[name]) != here[name]]
