"""Train, evaluate, save: the loop of `nearpeak train`, as a function without a terminal."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nearpeak.errors import DataError, LossNotFiniteError, NearpeakError, StorageError
from nearpeak.job import JobRecord, StepCount, describe_job
from nearpeak.plan import Plan, save_plan
from nearpeak.reason import Reason
from nearpeak.tasks.text_classification.config import TrainConfig
from nearpeak.tasks.text_classification.evaluating import Evaluator
from nearpeak.tasks.text_classification.interrupts import Interrupts
from nearpeak.tasks.text_classification.metrics import is_better, score
from nearpeak.tasks.text_classification.preparing import Prepared, prepare
from nearpeak.tasks.text_classification.resuming import Resuming, StateFolder
from nearpeak.tasks.text_classification.saving import Publisher, SaveError, replace_file, save_model
from nearpeak.train.preempt import Preempted

__all__ = ["Outcome", "Watcher", "train"]

READ_EVERY_S = 0.5
"""How often losses are read from the device: reading waits for it."""
MOST_UNREAD_STEPS = 64
DATASET_INDICES = re.compile(r"dataset index (\d+(?:, \d+)*)")
"""How the engine's message names samples."""
SHOWN_ROWS = 5
INTERRUPTED = "interrupted"
"""Inside the output folder: the weights of a stop, where a better or former model keeps its place."""


class Watcher:
    """What `train` tells the outside; the command line overrides what it wants to show. Called on rank 0 only."""

    def say(self, message: str) -> None:
        """What goes on right now."""

    def warn(self, message: str) -> None:
        """Something that the user should act on; training goes on."""

    def begin(self, prepared: Prepared, count: StepCount, plan: Plan, reasons: tuple[Reason, ...]) -> None:
        """Everything is ready; the first step comes next."""

    def steps(self, steps: int, totals: Totals) -> None:
        """So many more steps are done."""

    def evaluated(self, split: str, step: int, metrics: dict[str, Any]) -> None:
        """A split was evaluated after so many steps."""

    def saved(self, folder: Path, step: int) -> None:
        """The model of so many steps is on disk."""

    def end(self) -> None:
        """The last step is done, or training broke off."""


@dataclass(slots=True)
class Totals:
    """Running sums over the steps whose figures were read."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    micro_batches: int = 0
    wall_s: float = 0.0
    last_loss: float = math.nan
    losses: list[float] = field(default_factory=list)

    def add(self, step: Any) -> None:
        """Count one step."""
        self.steps += 1
        for name in ("samples", "tokens", "padded_tokens", "micro_batches", "wall_s"):
            setattr(self, name, getattr(self, name) + (getattr(step, name) or 0))
        self.last_loss = float(step.loss)
        self.losses.append(self.last_loss)

    def add_ranks(self, ranks: int) -> None:
        """Put the other ranks' shares in; samples are those of the whole window already."""
        if ranks == 1:
            return
        import torch

        shares: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(shares, (self.tokens, self.padded_tokens, self.micro_batches))
        self.tokens, self.padded_tokens, self.micro_batches = (sum(counts) for counts in zip(*shares, strict=True))

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.wall_s if self.wall_s else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s if self.wall_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out."""

    folder: Path
    plan: Plan
    reasons: tuple[Reason, ...]
    job: JobRecord
    totals: Totals
    metrics: dict[str, dict[str, Any]]
    """By split; of the model that was kept."""
    best_step: int | None
    interrupted: int | None
    """The signal that stopped training early."""
    saved_to: Path
    resumable: bool
    """Whether the same command goes on from what was reached."""
    notes: tuple[str, ...]


def train(
    config: TrainConfig, watcher: Watcher | None = None, *, device: str | None = None, resuming: Resuming | None = None
) -> Outcome:
    """Train as the config says; the model is in `output.folder` afterwards.

    A training of the same job that was stopped before goes on from the state it left.
    """
    resuming = resuming or Resuming()
    watcher = (watcher if is_first_rank() else None) or Watcher()
    state = StateFolder(config.output, resuming)
    # A model that stands there may be of the very training that goes on.
    overwrite = config.output.overwrite or state.waits
    publisher = Publisher(config.output.folder, overwrite=overwrite) if is_first_rank() else None
    try:
        prepared = prepare(config, watcher.say)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or the library warns at each worker that is forked
        return _Training(prepared, publisher, watcher, device, state).outcome()
    finally:
        if publisher is not None:
            publisher.close()


def is_first_rank() -> bool:
    """Whether this process writes and prints: all do, but for torchrun's ranks from 1 on."""
    return int(os.environ.get("RANK", "0")) == 0


class _Training:
    """One training: the run, what it has reached, and what of that is on disk."""

    def __init__(
        self,
        prepared: Prepared,
        publisher: Publisher | None,
        watcher: Watcher,
        device: str | None,
        state: StateFolder,
    ) -> None:
        self.prepared, self.publisher, self.watcher, self.state = prepared, publisher, watcher, state
        if publisher is not None:
            publisher.check_space(model_bytes(prepared.classifier.model))
        self.record = describe_job(prepared.job)
        self.totals = Totals()
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.best_step: int | None = None
        self.saved_to = Path(prepared.config.output.folder)
        self.metrics: dict[str, dict[str, Any]] = {}
        self.owed_evaluation: int | None = None
        """The step behind which a stop came first: its evaluation is made when the training goes on."""
        self._unread: list[Any] = []
        self._read_at = time.monotonic()
        watcher.say("planning")
        self.run = self._planned(device)
        self._log = _StepLog(self) if publisher is not None else None
        self._evaluator = _evaluator(prepared, self.run)

    def _planned(self, device: str | None) -> Any:
        """The run; a loss that is not finite may show already when its plan is checked."""
        from nearpeak.train.run import Run

        try:
            kept = self.state.checkpoints({"progress": self}, is_first_rank=self.publisher is not None)
            return Run(self.prepared.job, self.prepared.config.plan, device=device, checkpoints=kept)
        except LossNotFiniteError as error:
            raise LossNotFiniteError(self._with_rows(str(error))) from error

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Of every choice so far; the run adds its own while it goes on."""
        return (*self.prepared.reasons, *self.run.reasons)

    def outcome(self) -> Outcome:
        """Train to the end, or until asked to stop."""
        with Interrupts(self.run.ranks.count) as interrupts:
            try:
                self.watcher.begin(self.prepared, self.run.count, self.run.plan, self.reasons)
                self.watcher.steps(self.totals.steps, self.totals)
                self._make_up_evaluation()
                self._loop(interrupts)
                self._finish() if interrupts.signal is None else self._save_interrupted()
            except Preempted:
                self._leave("interrupted")
                raise
            except BaseException as error:
                self._leave("failed")
                if isinstance(error, LossNotFiniteError):
                    raise LossNotFiniteError(self._with_rows(str(error))) from error
                raise
        self._leave("finished" if interrupts.signal is None else "interrupted")
        if interrupts.signal is None:
            self.state.remove(self.run.ranks)
            self.totals.add_ranks(self.run.ranks.count)
        return self._outcome(interrupts.signal)

    def _outcome(self, interrupted: int | None) -> Outcome:
        return Outcome(
            folder=Path(self.prepared.config.output.folder),
            plan=self.run.plan,
            reasons=self.reasons,
            job=self.record,
            totals=self.totals,
            metrics=self.metrics,
            best_step=self.best_step,
            interrupted=interrupted,
            saved_to=self.saved_to,
            resumable=self.state.waits,
            notes=self.prepared.notes,
        )

    def _make_up_evaluation(self) -> None:
        owed, self.owed_evaluation = self.owed_evaluation, None
        if owed is not None:
            self._evaluate_and_save(owed, last=False)

    def _loop(self, interrupts: Interrupts) -> None:
        try:
            self._steps(interrupts)
        except (DataError, RuntimeError):
            # Whoever signals a whole process group ends its loader workers and other ranks with it: that is the stop
            # that was asked for and no error of its own. The weights are those of the last update.
            if not interrupts.comes_soon():
                raise
            self._read()
            if self.run.ranks.count == 1:  # others may have ended with their workers: nobody waits for them
                self._save_state()

    def _steps(self, interrupts: Interrupts) -> None:
        for step in self.run:
            self._take(step)
            due = self._due(step)
            if due or len(self._unread) >= MOST_UNREAD_STEPS or time.monotonic() - self._read_at > READ_EVERY_S:
                self._read()
            if interrupts.asked(step.index) and not step.last:
                self._read()
                self.owed_evaluation = step.index + 1 if due else None
                self._save_state()
                return
            if due:
                self._evaluate_and_save(step.index + 1, step.last)

    def _save_state(self) -> None:
        """Before a stop that was asked for; a disk that is full must not cost the model that is saved next."""
        try:
            self.state.save(self.run)
        except StorageError as error:
            self.watcher.warn(f"{error} The training cannot go on from this step.")

    def state_dict(self) -> dict[str, Any]:
        """What was reached so far, for the checkpoint that is being saved."""
        self._read()
        published = self.publisher is not None and self.publisher.published
        names = ("history", "best", "best_step", "metrics", "owed_evaluation")
        return {"totals": asdict(self.totals), "published": published} | {name: getattr(self, name) for name in names}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what was reached when the training was stopped."""
        self.totals = Totals(**saved.pop("totals"))
        published = saved.pop("published")
        if self.publisher is not None:
            self.publisher.published = published and self.publisher.occupied
        for name, value in saved.items():
            setattr(self, name, value)

    def _take(self, step: Any) -> None:
        self._unread.append(step)
        if self._log is not None:
            self._log.add(step)

    def _read(self) -> None:
        """Read the figures of the steps since the last time."""
        unread, self._unread = self._unread, []
        for step in unread:
            self.totals.add(step)
        self._read_at = time.monotonic()
        self.watcher.steps(len(unread), self.totals)

    def _with_rows(self, message: str) -> str:
        """The engine knows samples by number; the user knows rows of files."""
        found = DATASET_INDICES.search(message)
        if found is None:
            return message
        split, indices = self.prepared.data.train, [int(index) for index in found[1].split(", ")]
        rows = "; ".join(split.where(index) for index in indices[:SHOWN_ROWS])
        more = f" and {len(indices) - SHOWN_ROWS} more" if len(indices) > SHOWN_ROWS else ""
        return f"{message} These are {rows}{more}. The settings: job.learning_rate, job.clip_norm, plan.precision."

    def _due(self, step: Any) -> bool:
        """Whether this step is followed by an evaluation (or, without validation data, by a save)."""
        every = self.prepared.config.output.evaluate_every
        if step.last or every == "end":
            return bool(step.last)
        if isinstance(every, int):
            return (step.index + 1) % every == 0
        return ends_epoch(step.index, self.prepared.job, self.run.count)

    # Evaluating and saving

    def _evaluate_and_save(self, step: int, last: bool) -> None:
        metric = self.prepared.metric
        found = self._evaluate("validation", step)
        if found is not None:
            self.history.append({"step": step} | found)
        better = found is None or metric == "last" or is_better(metric, found, self.best)
        if not better and not (last and self.best_step is None):
            return
        if self._save(step, found, last):
            self.best, self.best_step = found, step
            self.metrics = {"validation": found} if found else {}

    def _evaluate(self, split: str, step: int) -> dict[str, Any] | None:
        data = self.prepared.encoded.get(split)
        if data is None:
            return None
        self.watcher.say(f"evaluating {split}")
        space = self.prepared.data.space
        found = score(space.problem, self._evaluator.predict(self.run.model, data), data.labels, space.names)
        self.watcher.evaluated(split, step, found)
        return found

    def _save(self, step: int, found: dict[str, Any] | None, last: bool, subfolder: str | None = None) -> bool:
        """Put the present model into the output folder; a full disk is an error only where no later save comes."""
        if self.publisher is None:
            return True
        try:
            with self.publisher.publish(subfolder) as folder:
                self._write(folder, step, {"validation": found} if found else {})
        except SaveError as error:
            if last:
                raise
            self.watcher.warn(f"{error} Training goes on; the next save comes with the next evaluation.")
            return False
        self.saved_to = self.publisher.folder / subfolder if subfolder else self.publisher.folder
        self.watcher.saved(self.saved_to, step)
        return True

    def _write(self, folder: Path, step: int, metrics: dict[str, Any]) -> None:
        save_model(folder, unwrapped(self.run.model), self.prepared.classifier.tokenizer)
        save_plan(self.run.plan, folder / "plan.json")
        replace_file(folder / "job.json", pretty_json(self.record))
        replace_file(
            folder / "train.json", pretty_json({name: value for name, value, _ in self.prepared.config.described()})
        )
        replace_file(folder / "metrics.json", pretty_json(self._metrics_record(step, metrics)))

    def _metrics_record(self, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
        space = self.prepared.data.space
        return {
            "schema": 1,
            "problem": space.problem,
            "labels": list(space.names),
            "step": step,
            "optimizer_steps": self.run.count.optimizer_steps,
            "saved_by": self.prepared.metric,
            "train": {
                "loss": self.totals.last_loss if self.totals.steps else None,
                "samples": len(self.prepared.data.train),
            },
            **metrics,
            "history": self.history,
            "notes": list(self.prepared.notes),
        }

    # The end

    def _finish(self) -> None:
        """Measure the kept model on the test split, and write down the whole history."""
        if "test" in self.prepared.encoded:
            self._restore_best()
            self.metrics["test"] = self._evaluate("test", self.best_step or 0) or {}
        if self.publisher is not None and self.best_step is not None:
            record = self._metrics_record(self.best_step, self.metrics)
            replace_file(self.publisher.folder / "metrics.json", pretty_json(record))
            # What a stop left on the way to this end; a model that was saved since has taken it along already.
            shutil.rmtree(self.publisher.folder / INTERRUPTED, ignore_errors=True)

    def _restore_best(self) -> None:
        """The kept model's weights, on every rank."""
        if self.best_step in (None, self.run.count.optimizer_steps):
            return
        model = unwrapped(self.run.model)
        if self.publisher is not None:
            model.load_state_dict(type(model).from_pretrained(self.publisher.folder, dtype=model.dtype).state_dict())
        if self.run.ranks.count > 1:
            import torch

            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def _save_interrupted(self) -> None:
        """What was learned so far: in the output folder if nothing better stands there, else in a folder inside it."""
        publisher = self.publisher
        if publisher is None:
            return
        in_place = not publisher.occupied or (publisher.published and self.prepared.metric == "last")
        step = self.totals.steps
        if self._save(step, None, True, None if in_place else INTERRUPTED) and in_place:
            self.best_step = step

    def _leave(self, outcome: str) -> None:
        self.watcher.end()
        if self._log is None or self.publisher is None:
            return
        kept = self._log.close(outcome, self.publisher.folder if self.publisher.published else None)
        if outcome != "failed":
            return
        model = (
            f"The model of step {self.best_step:,} in {self.saved_to} is whole."
            if self.best_step
            else self._untouched()
        )
        self.watcher.warn(f"{model} The steps so far are recorded in {kept}.")

    def _untouched(self) -> str:
        assert self.publisher is not None
        return (
            f"The former model in {self.publisher.folder} is untouched."
            if self.publisher.occupied
            else "No model was saved."
        )


class _StepLog:
    """The recording: beside the output folder while training runs, inside it afterwards."""

    def __init__(self, training: _Training) -> None:
        import torch

        from nearpeak.recording import RecordingWriter, describe_run

        folder = Path(training.prepared.config.output.folder).absolute()
        self.folder = folder.with_name(f"{folder.name}.recording")
        goes_on = training.run.next_step > 0
        if goes_on and not self.folder.exists() and (folder / "recording").exists():
            (folder / "recording").rename(self.folder)  # the stopped training took it for ended
        info = describe_run(
            torch_version=str(torch.__version__),
            device=str(device_of(training.run.model)),
            ranks=training.run.ranks.count,
        )
        self._writer = RecordingWriter(
            self.folder,
            info,
            plan=training.run.plan,
            job=training.record,
            force=True,
            extend=goes_on,
        )

    def add(self, step: Any) -> None:
        """Record one step."""
        self._writer.add(step)

    def close(self, outcome: Any, folder: Path | None) -> Path:
        """End the recording and move it into the model's folder, if there is one; returns where it is."""
        self._writer.close(outcome)
        if folder is None:
            return self.folder
        target = folder / "recording"
        with suppress(OSError):  # a disk that fails now must not turn a saved model into an error
            shutil.rmtree(target, ignore_errors=True)
            self.folder.rename(target)
            return target
        return self.folder


def _evaluator(prepared: Prepared, run: Any) -> Evaluator:
    collate: Callable[[list[Any]], Any] = prepared.job.collate  # type: ignore[assignment]
    return Evaluator(collate, device_of(run.model), run.plan.precision, run.ranks.rank, run.ranks.count)


def ends_epoch(step: int, job: Any, count: StepCount) -> bool:
    """Whether the window of this step is the last of an epoch (with `carry`: holds the epoch's last sample)."""
    if job.remainder == "carry":
        samples = len(job.data)
        return (step + 1) * job.global_batch // samples > step * job.global_batch // samples
    return count.steps_per_epoch is not None and (step + 1) % count.steps_per_epoch == 0


def device_of(model: Any) -> Any:
    """Where the weights are."""
    return next(model.parameters()).device


def unwrapped(model: Any) -> Any:
    """The model itself, out of what compiling or parallelism wrapped around it."""
    while not hasattr(model, "save_pretrained"):
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if inner is None:
            raise NearpeakError(
                f"{type(model).__name__} has no save_pretrained: only transformers models can be saved."
            )
        model = inner
    return model


def model_bytes(model: Any) -> int:
    """What the weights take on disk."""
    return sum(weight.numel() * weight.element_size() for weight in model.state_dict().values())


def pretty_json(value: Any) -> bytes:
    """Readable JSON; figures that are not finite become null, for JSON has no NaN."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
