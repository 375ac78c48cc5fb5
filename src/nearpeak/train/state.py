"""The state of a run: what is saved, when, and how a run goes on from it bit for bit.

Weights, buffers, optimizer, schedule, loss scale, random states, and where the sample stream stands. What a run draws
for its samples and its dropout is a function of the job's seed and the step, so it needs no saving; the random states
are those of the user's own code between steps.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
import torch.distributed as dist

from nearpeak.errors import NearpeakError, ResumeError, StorageError
from nearpeak.job import describe_job
from nearpeak.plan import Plan
from nearpeak.reason import Reason
from nearpeak.train.cadence import Hazard
from nearpeak.train.nested import restore_rng, rng_state
from nearpeak.train.order import Origin, order_of
from nearpeak.train.parallel import Ranks, agree
from nearpeak.train.preempt import Notices, Preempted, everyone_is_here, told_by_peer
from nearpeak.train.rhythm import Rhythm
from nearpeak.train.saver import Saver, load_state
from nearpeak.train.step import LateFigure
from nearpeak.train.storage import Checkpoint, CheckpointFolder, Position

if TYPE_CHECKING:
    from nearpeak.job import Job
    from nearpeak.train.run import Run

__all__ = ["Checkpoints", "Keeper", "Resumed"]

logger = logging.getLogger("nearpeak")

SAME_JOB = ("samples", "remainder", "order", "seed", "normaliser", "model", "parameters")
"""What a saved state and the job that goes on from it must have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Where a run keeps its state and how it takes it up again."""

    folder: str | Path
    resume: bool = True
    """Go on from the newest checkpoint that verifies, if there is one."""
    extra_state: Mapping[str, Any] = field(default_factory=dict)
    """Objects of your own that belong to the state, by name: anything with state_dict() and load_state_dict()."""
    allow_new_global_batch: bool = False
    """Go on at the next sample though the global batch is another than before."""
    every: int | Literal["auto"] | None = None
    """Optimizer steps between two checkpoints, or "auto"; None leaves it to the plan's `checkpoint_every`."""
    kept: int | None = None
    """How many stay; None leaves it to the plan's `checkpoints_kept`."""
    at_end: bool = True
    """Save the end of the training as well; False where something else keeps its result."""
    hazard: Hazard = field(default_factory=lambda: Hazard.constant(1 / 24))
    """How likely this machine is lost, by its age; steers `checkpoint_every="auto"`."""
    notices: Literal["auto", "machine"] | Sequence[str] | None = "auto"
    """Who may announce the end of this machine: see `nearpeak.train.preempt.Notices`; None listens to nobody."""
    peer_timeout_s: float = 60.0
    """How long ranks wait for each other before they take one for dead."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from."""

    checkpoint: Checkpoint
    plan: Plan
    origin: Origin
    step: int
    reasons: tuple[Reason, ...]


class Keeper:
    """Saves the state of one run, listens for notices, and puts a saved state back."""

    def __init__(self, settings: Checkpoints, ranks: Ranks) -> None:
        self.settings, self.ranks = settings, ranks
        self.folder = CheckpointFolder(Path(settings.folder))
        self._notices: Notices | None = None
        self._saver: Saver | None = None
        self._stop = self._save = False
        self._unsaved = self._advised = False
        self._stalled_s = 0.0
        self._started = time.monotonic()
        self._agreed: tuple[LateFigure, LateFigure] | None = None

    # -- going on ------------------------------------------------------------------------------------------------------

    def find(self, job: Job) -> Resumed | None:
        """The checkpoint to go on from; decided on the first rank, for all of them."""
        if not self.settings.resume:
            return None
        outcome: Resumed | NearpeakError | None = None
        if self.ranks.is_first:
            try:
                outcome = self._find(job)
            except NearpeakError as error:
                outcome = error
        found: Any = agree(outcome, self.ranks)
        if isinstance(found, NearpeakError):
            raise found
        return found

    def _find(self, job: Job) -> Resumed | None:
        self.folder.clear_orphans()
        found = self.folder.newest()
        reasons = [Reason("resume=not from", f"{skipped.path.name}: {skipped.why}") for skipped in found.skipped]
        for reason in reasons:
            logger.warning("nearpeak: %s", reason)
        if found.checkpoint is None:
            self._refuse_all_broken(reasons)
            return None
        return _resumed(found.checkpoint, job, self.settings, self.ranks, reasons)

    def _refuse_all_broken(self, reasons: list[Reason]) -> None:
        """Starting anew where there is something that could be saved would be the silent loss of a training."""
        if reasons:
            raise StorageError(
                f"{self.folder.root}: no checkpoint in it verifies ({reasons[0].because}). Move the folder away to "
                "start anew, or put a whole checkpoint into it."
            )

    def restore(self, run: Run, resumed: Resumed) -> None:
        """Put a saved state into a run that was just set up."""
        state = load_state(resumed.checkpoint)
        _restore_tensors(run.model.named_parameters(), state["parameters"], "parameter")
        _restore_tensors(run.model.named_buffers(), state["buffers"], "buffer")
        run.optimizer.load_state_dict(state["optimizer"])
        _restore_one("schedule", run.schedule, state["schedule"])
        if run.scaler is not None and state["scaler"] is not None:
            for name, value in state["scaler"].items():
                setattr(run.scaler, name, value)
        self._restore_extra(state["extra"])
        # With another number of ranks there is no random state that would be the right one.
        if len(state["random"]) == self.ranks.count:
            restore_rng(state["random"][self.ranks.rank])

    def _restore_extra(self, saved: Mapping[str, Any]) -> None:
        for name, own in self.settings.extra_state.items():
            if name not in saved:
                raise ResumeError(
                    f"extra_state[{name!r}] is not in the checkpoint, which has {sorted(saved) or 'none'}: leave it "
                    "out, or resume with the names that were saved."
                )
            own.load_state_dict(saved[name])

    # -- saving --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self, run: Run) -> Iterator[Keeper]:
        """Listen and save while it is open; the last save is durable when it closes."""
        every = self.settings.every or run.plan.checkpoint_every
        self._rhythm = Rhythm(every, self.settings.hazard, self._started, run.reasons)
        with contextlib.ExitStack() as stack:
            if self.settings.notices is not None:
                notices = Notices(self.settings.notices, local_rank=self.ranks.local_rank)
                self._notices = stack.enter_context(notices)
                run.reasons += notices.reasons
            if self.ranks.is_first:
                kept = self.settings.kept or run.plan.checkpoints_kept
                self._saver = stack.enter_context(Saver(self.folder, keep=kept, on_failure="warn"))
                self._saver.reasons = run.reasons
            yield self

    def flags(self, step: int) -> tuple[float, float]:
        """(stop, save) of this rank for the step under way; they are added up over ranks with its statistics."""
        pending = self._notices is not None and self._notices.pending is not None
        due = self.ranks.is_first and (self._rhythm.is_due(step + 1) or self._torn)
        return float(pending), float(self._take_advice() or due)

    def _take_advice(self) -> bool:
        """Whether somebody on this machine recommends a save soon: a machine "at elevated risk" goes on working."""
        while self._notices is not None and (advice := self._notices.take_advice()) is not None:
            self._advised = True
            logger.warning("nearpeak: a checkpoint is saved, the run goes on: %s", advice)
        return self._advised

    def hear(self, stop: float | torch.Tensor, save: float | torch.Tensor) -> None:
        """What the ranks agreed on for the step under way; from a GPU it is read one step late, so that none waits."""
        if isinstance(stop, torch.Tensor) and isinstance(save, torch.Tensor) and stop.is_cuda:
            late, self._agreed = self._agreed, (LateFigure(stop), LateFigure(save))
            self._stop, self._save = (False, False) if late is None else (each.read() > 0 for each in late)
        else:
            self._stop, self._save = float(stop) > 0, float(save) > 0

    def before_update(self) -> None:
        """The state that is being copied may not change before it is."""
        self._stalled_s = 0.0 if self._saver is None else self._saver.wait_staged() / 1e3

    def after_step(self, run: Run, wall_s: float) -> None:
        """After the user's own code of a step: save if it is time, leave if somebody said so."""
        self._unsaved = True
        saving = self._saver is not None and self._saver.busy
        self._rhythm.note_step(wall_s - self._stalled_s, saving=saving)
        if self._stop:
            self._leave(run)
        elif self._save:
            self._begin(run)

    def save_now(self, run: Run) -> None:
        """Save whether it is time or not, and wait until it is durable."""
        self._begin(run, at_once=True)
        if self._saver is not None:
            self._saver.wait_durable()

    def finish(self, run: Run) -> None:
        """The end of the training is saved as well, if it is wanted."""
        if self._unsaved and self.settings.at_end:
            self._begin(run)
        if self._saver is not None:
            self._saver.wait_durable()

    @property
    def _torn(self) -> bool:
        return self._saver is not None and self._saver.again

    def _begin(self, run: Run, *, at_once: bool = False, alone: bool = False) -> None:
        random = [rng_state()] if alone else _gathered(rng_state(), self.ranks)
        self._unsaved = self._advised = False
        if self._saver is not None:
            steady, changing = _state_of(run, random, self.settings.extra_state)
            before = self._saver.last
            self._saver.begin(_position(run), steady, changing, at_once=at_once)
            self._rhythm.note_save(run.next_step, before)  # whose end `begin` has waited for

    def _leave(self, run: Run) -> None:
        """Save, wait until it is durable, tell whoever asked, and leave with the code that means "start me again"."""
        everyone = everyone_is_here(self.ranks, self.settings.peer_timeout_s)
        self._begin(run, at_once=True, alone=not everyone)
        if self._saver is not None:
            self._saver.wait_durable()
        # torchrun takes the first rank that leaves for a failure and ends the others: leave together.
        if everyone:
            everyone_is_here(self.ranks, self.settings.peer_timeout_s)
        notice = told_by_peer()
        if self._notices is not None:
            self._notices.acknowledge()
            notice = self._notices.pending or notice
        logger.warning("nearpeak: stopped before step %d, which is saved: %s", run.next_step, notice)
        raise Preempted(notice)


def _gathered(own: Any, ranks: Ranks) -> list[Any]:
    if ranks.count == 1:
        return [own]
    everyone: list[Any] = [None] * ranks.count
    dist.all_gather_object(everyone, own)
    return everyone


def _state_of(run: Run, random: list[Any], extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What rests between two updates, and what must be copied at once."""
    steady = {"parameters": dict(run.model.named_parameters()), "optimizer": run.optimizer.state_dict()}
    scaler = None if run.scaler is None else {name: getattr(run.scaler, name) for name in run.scaler.__slots__}
    changing = {
        "buffers": dict(run.model.named_buffers()),
        "schedule": None if run.schedule is None else run.schedule.state_dict(),
        "scaler": scaler,
        "random": random,
        "extra": {name: own.state_dict() for name, own in extra.items()},
    }
    return _detached(steady), changing | {"buffers": _detached(changing["buffers"])}


def _detached(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach()
    if isinstance(state, dict):
        return {key: _detached(value) for key, value in state.items()}
    return state


def _position(run: Run) -> Position:
    extra = {
        "job": msgspec.to_builtins(describe_job(run.job)),
        "plan": msgspec.to_builtins(run.plan),
        "origin": msgspec.to_builtins(run.origin),
        "threads": torch.get_num_threads(),
    }
    return Position(
        step=run.next_step,
        cursor=_cursor(run),
        global_batch=run.job.global_batch,
        ranks=run.ranks.count,
        extra=extra,
    )


def _cursor(run: Run) -> int:
    """Where the next window begins: epoch · samples + offset; for streams, full windows are assumed."""
    order = order_of(run.job, run.origin)
    return run.next_step * run.job.global_batch if order is None else order.position_of(run.next_step)


# -- going on, in detail -----------------------------------------------------------------------------------------------


def _resumed(checkpoint: Checkpoint, job: Job, settings: Checkpoints, ranks: Ranks, skipped: list[Reason]) -> Resumed:
    manifest = checkpoint.manifest
    assert manifest is not None
    _check_same_job(checkpoint, job)
    plan = msgspec.convert(manifest.extra["plan"], Plan)
    origin = msgspec.convert(manifest.extra["origin"], Origin)
    reasons = [*skipped, Reason("resume=yes", f"{checkpoint.path.name} verifies; step {manifest.step} is next.")]
    if manifest.global_batch != job.global_batch:
        origin, reason = _new_origin(checkpoint, job, settings)
        reasons.append(reason)
    reasons += _why_not_bitwise(checkpoint, ranks)
    return Resumed(checkpoint, plan, origin, manifest.step, tuple(reasons))


def _check_same_job(checkpoint: Checkpoint, job: Job) -> None:
    assert checkpoint.manifest is not None
    saved, present = checkpoint.manifest.extra["job"], msgspec.to_builtins(describe_job(job))
    different = [
        f"{name} was {saved[name]!r} and is {present[name]!r}" for name in SAME_JOB if saved[name] != present[name]
    ]
    if different:
        raise ResumeError(
            f"{checkpoint.path}: it belongs to another job: {'; '.join(different)}. Resume with the job that was "
            "saved, or start anew in another folder (or with resume=False)."
        )


def _new_origin(checkpoint: Checkpoint, job: Job, settings: Checkpoints) -> tuple[Origin, Reason]:
    """Windows of the new size from the next sample on."""
    manifest = checkpoint.manifest
    assert manifest is not None
    order = order_of(job)
    said = f"the global batch was {manifest.global_batch} and is {job.global_batch}"
    if not settings.allow_new_global_batch or order is None:
        allow = "allow_new_global_batch=True, of `nearpeak train` --allow-new-global-batch"
        way_out = "" if order is None else f" To go on at the next sample all the same: {allow}."
        raise ResumeError(
            f"{checkpoint.path}: {said}. That changes what is learned: other windows, and another number of steps "
            f"under the same schedule. Set it back to {manifest.global_batch}.{way_out}"
        )
    epoch, offset = divmod(manifest.cursor, order.samples)
    because = f"{said}, as allowed: windows go on at sample {offset} of epoch {epoch}; none is lost or repeated."
    return Origin(manifest.step, epoch, offset), Reason("global_batch=changed", because)


def _why_not_bitwise(checkpoint: Checkpoint, ranks: Ranks) -> list[Reason]:
    """What of this machine makes sums round differently from what was saved."""
    manifest = checkpoint.manifest
    assert manifest is not None
    here = {"ranks": ranks.count, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    saved = {"ranks": manifest.ranks, "threads": manifest.extra["threads"], "torch": manifest.versions.get("torch")}
    different = [f"{name} {saved[name]} → {here[name]}" for name in here if saved[name] != here[name]]
    if not different:
        return []
    because = f"{', '.join(different)}: the same windows and steps, but sums may round differently."
    return [Reason("resume=not bit for bit", because)]


def _restore_tensors(named: Iterator[tuple[str, torch.Tensor]], saved: Mapping[str, torch.Tensor], kind: str) -> None:
    own = dict(named)
    if own.keys() != saved.keys():
        odd = sorted(own.keys() ^ saved.keys())
        raise ResumeError(f"{kind} {odd[0]!r} is not on both sides: the checkpoint is of another model.")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
                raise ResumeError(
                    f"{kind} {name!r} is {tuple(tensor.shape)} {tensor.dtype} here and {tuple(saved[name].shape)} "
                    f"{saved[name].dtype} in the checkpoint: it is of another model."
                )
            tensor.copy_(saved[name])


def _restore_one(name: str, own: Any, saved: Any) -> None:
    if (own is None) != (saved is None):
        was, has = "not " if saved is None else "", "none" if own is None else "one"
        raise ResumeError(f"The {name} was {was}saved, and the job has {has}: resume with the job that was saved.")
    if own is not None:
        own.load_state_dict(saved)
