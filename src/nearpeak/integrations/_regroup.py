"""Regroups the accumulation windows of a transformers Trainer, from outside.

`get_batch_samples` hands the Trainer the batches of one optimizer step. It still gets all of them, so its counting, its
callbacks and its logs stay what they are; but its training step does nothing for any batch but the last, and then runs
the whole window in better micro-batches through the user's own training step. Both methods are replaced on the instance
and only while it trains: subclasses keep every override.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from nearpeak.integrations import _agreement
from nearpeak.integrations._check import Check, Trial
from nearpeak.integrations._choice import Choice, from_json, to_json
from nearpeak.integrations._obstacles import model_of, obstacle_in_trainer, obstacle_in_window, overridden
from nearpeak.integrations._window import Method, MicroBatch, budget_of, execute, micro_batches
from nearpeak.reason import Reason
from nearpeak.train.kernels import apply_kernels
from nearpeak.train.packed import PackedAdapter

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["Regrouping", "Report", "regrouped", "regrouping_of"]

logger = logging.getLogger("nearpeak")
MARK = "_nearpeak_regrouping"


@dataclass(slots=True)
class Report:
    """What was done in one process and why; `publish` is called when something new is known."""

    trainer: str = ""
    reasons: list[Reason] = field(default_factory=list)
    windows: int = 0
    regrouped: int = 0
    own_tokens: int = 0
    """Tokens, padding included, that the script's own micro-batches would have computed."""
    computed_tokens: int = 0
    publish: Callable[[Report], None] | None = None
    """Where somebody else tells the user, nothing is logged here."""

    def say(self, choice: str, because: str, *, level: int = logging.INFO, **evidence: float | str) -> None:
        """Record a choice; log it in one line, or hand on what is known."""
        self.reasons.append(Reason(choice, because, evidence))
        if self.publish is None:
            logger.log(level, "nearpeak: %s", self.reasons[-1])
        else:
            self.publish(self)

    def close(self) -> None:
        """Hand on the final counts."""
        if self.publish is not None:
            self.publish(self)


@contextlib.contextmanager
def regrouped(trainer: Trainer, *, bf16: bool = False, report: Report | None = None) -> Iterator[Report]:
    """Regroup what this trainer trains on inside the block; a trainer that is regrouped already is left alone."""
    if hasattr(trainer, MARK):
        present = getattr(trainer, MARK).report
        present.publish = present.publish or (report.publish if report else None)
        yield present
        return
    regrouping = Regrouping(trainer, bf16=bf16, report=report or Report())
    regrouping.attach()
    try:
        yield regrouping.report
    finally:
        regrouping.detach()


def regrouping_of(trainer: Trainer) -> Regrouping:
    """What regroups this trainer at present."""
    return getattr(trainer, MARK)


class Regrouping:
    """One trainer's windows."""

    def __init__(self, trainer: Trainer, *, bf16: bool, report: Report) -> None:
        self.trainer, self.report = trainer, report
        self.method: Method | None = None
        self._decided = False
        self._wants_bf16, self._uses_bf16, self._autocasts = bf16, False, False
        self._batches: list[Any] = []
        self._position = 0
        self._parts: list[MicroBatch] = []
        self._largest_batch, self._budget_size = 0, None
        self._trimming_checked = False
        self._earlier: Choice | None = None
        self._take_off_kernels: Callable[[], None] = lambda: None
        self._own = {name: getattr(trainer, name) for name in ("get_batch_samples", "training_step", "compute_loss")}
        self._shadowed = {name: vars(trainer)[name] for name in self._own if name in vars(trainer)}

    def attach(self) -> None:
        """Put our methods before the trainer's own."""
        self.report.trainer = type(self.trainer).__name__
        names = ("get_batch_samples", "training_step", *(["compute_loss"] if self._wants_bf16 else []))
        for name in names:
            setattr(self.trainer, name, getattr(self, name))
        setattr(self.trainer, MARK, self)

    def detach(self) -> None:
        """Take them away again."""
        self._take_off_kernels()
        for name in (*self._own, MARK):
            vars(self.trainer).pop(name, None)
        vars(self.trainer).update(self._shadowed)
        if not self.report.windows:
            self._keep("no window passed through get_batch_samples")
        self.report.close()

    # What a checkpoint keeps.

    def choice(self) -> dict[str, Any] | None:
        """JSON of what was decided; None while nothing is."""
        return to_json(Choice(self.method, self._largest_batch)) if self._decided else None

    def restore(self, choice: dict[str, Any]) -> None:
        """Go on as decided before a stop: other micro-batches would give other last bits."""
        self._earlier = from_json(choice)

    # The trainer's methods, as it will call them.

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Let the trainer take the batches of its next window, and remember them."""
        result = self._own["get_batch_samples"](*args, **kwargs)
        batches = result[0] if isinstance(result, tuple) and isinstance(result[0], list) else []
        self._batches, self._position = batches, 0
        return result

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Nothing for any batch of a window but the last; then all of it."""
        if not self._is_next(inputs):
            return self._in_precision(model, inputs, num_items_in_batch)
        if self._position == 1 and not self._prepare(num_items_in_batch):
            self._batches = []
            return self._in_precision(model, inputs, num_items_in_batch)
        if self._position < len(self._batches):
            return torch.zeros((), device=self.trainer.args.device)
        return self._run_window(model, num_items_in_batch)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The user's own, under bf16 while a training step runs (evaluation keeps its precision)."""
        device = self.trainer.args.device.type
        with torch.autocast(device, torch.bfloat16) if self._autocasts else contextlib.nullcontext():
            return self._own["compute_loss"](*args, **kwargs)

    # How that is done.

    def _is_next(self, inputs: Any) -> bool:
        """Whether these are the very inputs that stand next in the window."""
        known = self._position < len(self._batches) and self._batches[self._position] is inputs
        self._position += known
        return known

    def _in_precision(self, model: torch.nn.Module, inputs: Any, items: Any) -> torch.Tensor:
        with self._bf16() if self._uses_bf16 else contextlib.nullcontext():
            return self._own["training_step"](model, inputs, items)

    @contextlib.contextmanager
    def _bf16(self) -> Iterator[None]:
        self._autocasts = True
        try:
            yield
        finally:
            self._autocasts = False

    def _prepare(self, items: Any) -> bool:
        """Whether this window is to be regrouped; decides how before the first one."""
        self.report.windows += 1
        if not self._decided:
            self._decided = True
            self._decide(items)
        if self.method is None or obstacle_in_window(self._batches):
            return False
        return (self._trimming_checked or self._check_trimming(items)) and self._cut(self.method)

    def _cut(self, method: Method) -> bool:
        """Cut the window before anything of it is skipped: should that fail, the script's own way is still open."""
        try:
            self._parts = micro_batches(self._batches, method, self._budget())
        except Exception as error:  # noqa: BLE001  part of the one boundary: see _checked
            self.method = None
            self._keep(_fault("a window could not be cut", error))
            return False
        self.report.regrouped += 1
        self.report.own_tokens += sum(batch["input_ids"].numel() for batch in self._batches)
        self.report.computed_tokens += sum(part.tokens for part in self._parts)
        return True

    def _run_window(self, model: torch.nn.Module, items: Any) -> torch.Tensor:
        parts, self._parts = self._parts, []
        with self._bf16() if self._uses_bf16 else contextlib.nullcontext():
            return execute(self.trainer, self._own["training_step"], model, parts, items)

    def _budget(self) -> int:
        """Most tokens of a micro-batch: no more than the script's own largest batch up to here held."""
        size = getattr(self.trainer, "_train_batch_size", None)
        if size != self._budget_size:
            self._largest_batch, self._budget_size = 0, size
        self._largest_batch = max(self._largest_batch, budget_of(self._batches))
        return self._largest_batch

    # Deciding.

    def _decide(self, items: Any) -> None:
        """Choose how windows are regrouped, together with the other ranks, and say why."""
        check = Check(self.trainer, self._own["training_step"], self._batches, items)
        if self._earlier is not None and self._goes_on(self._earlier, check):
            return
        obstacle = obstacle_in_trainer(self.trainer) or obstacle_in_window(self._batches)
        trials = [] if obstacle else self._checked(check)
        trials = _agreement.agree(trials, self.trainer.args.device)
        self._choose_precision(trials)
        holding = [trial for trial in trials if trial.holds and trial.method is not None]
        if not holding:
            self._keep(obstacle or _failure(check, trials))
            return
        best = min(holding, key=lambda trial: trial.window_ms)
        assert best.method is not None
        self.method = self._on_model(best.method)
        self._take_off_kernels = apply_kernels(model_of(self.trainer), best.method.kernels)
        self._trimming_checked = _has_padding(self._batches)
        self._say_regrouped(check, best, trials)
        self.report.reasons += check.kernel_reasons
        self._name_quirk(best.method, items)

    def _goes_on(self, earlier: Choice, check: Check) -> bool:
        """Take what the checkpoint had, if it still holds on every rank; what cannot be taken is chosen anew."""
        method = earlier.method and self._on_model(earlier.method)
        trial = Trial("partition", holds=method is None)
        if method is not None:
            obstacle = obstacle_in_trainer(self.trainer) or obstacle_in_window(self._batches)
            wrong = obstacle or ("packed rows are not possible here" if earlier.needs_adapter(method) else None)
            trial = Trial(method.name, because=wrong) if wrong else (self._checked(check, [method]) or [trial])[0]
        if not _agreement.everywhere(trial.holds, self.trainer.args.device):
            because = f"what the checkpoint had does not hold: {trial.because or check.measured.because}"
            self.report.say("micro_batching=anew", f"{because}; the last bits will differ", level=logging.WARNING)
            return False
        self._take_up(method, earlier.largest_batch, check)
        return True

    def _take_up(self, method: Method | None, largest_batch: int, check: Check) -> None:
        self.method = method
        self._budget()
        self._largest_batch = max(self._largest_batch, largest_batch)
        if method is None:
            self._keep("so it was when the checkpoint was saved")
            return
        self._take_off_kernels = apply_kernels(model_of(self.trainer), method.kernels)
        self._trimming_checked = _has_padding(self._batches)
        because = f"as when the checkpoint was saved; checked again: {check.measured.because}"
        self.report.say(f"micro_batching={method.name}", because)

    def _checked(self, check: Check, wanted: Sequence[Method] = ()) -> list[Trial]:
        """The one boundary: whatever goes wrong here must not end somebody's training."""
        bf16 = self._bf16 if self._wants_bf16 and not wanted and check.precision == "fp32" else None
        try:
            return check.run(wanted, bf16)
        except Exception as error:  # noqa: BLE001  the one boundary
            return [Trial("partition", because=_fault("the check failed", error))]
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _on_model(self, method: Method) -> Method:
        if method.name != "packed":
            return method
        return replace(method, adapter=PackedAdapter.find(model_of(self.trainer))[0])

    def _check_trimming(self, items: Any) -> bool:
        """The first window with padding to cut off has to hold as well, if the one that was checked had none."""
        if not _has_padding(self._batches):
            return True
        assert self.method is not None
        self._trimming_checked = True
        check = Check(self.trainer, self._own["training_step"], self._batches, items)
        trials = self._checked(check, [self.method])
        if not trials[0].holds:
            self.method = None
            self._keep(_failure(check, trials))
        return trials[0].holds

    def _choose_precision(self, trials: list[Trial]) -> None:
        if not self._wants_bf16:
            return
        bf16 = next((trial for trial in trials if trial.name == "bf16"), None)
        self._uses_bf16 = bf16 is not None and bf16.holds
        if bf16 is None:
            because = "bf16 was not tried: the script has a precision of its own, or nothing could be checked"
            self.report.say("precision=kept", because)
        elif bf16.holds:
            self.report.say("precision=bf16", f"a change of rounding, as asked for; {bf16.because}")
        else:
            self.report.say("precision=kept", f"bf16 was asked for, but {bf16.because}", level=logging.WARNING)

    # Saying.

    def _keep(self, because: str) -> None:
        names = overridden(self.trainer)
        if names:
            because += f" ({type(self.trainer).__name__} overrides {', '.join(names)})"
        self.report.say("micro_batching=fixed", f"kept the script's own way: {because}", level=logging.WARNING)

    def _say_regrouped(self, check: Check, best: Trial, trials: list[Trial]) -> None:
        rows = len(self._batches[0]["input_ids"])
        text = f"windows of {len(self._batches)}×{rows} regrouped: {best.name}; "
        text += f"{best.because} against the script's own way"
        names = overridden(self.trainer)
        if names:
            text += f"; the check covers the overridden {', '.join(names)}"
        for trial in trials:
            if trial.method and not trial.holds:
                text += f"; not {trial.name}: {trial.because}"
        assert best.deviation is not None
        self.report.say(
            f"micro_batching={best.name}",
            text,
            gradient_relative=best.deviation.relative,
            gradient_cosine=best.deviation.cosine,
            own_window_ms=round(check.reference_ms, 1),
            window_ms=round(best.window_ms, 1),
            normaliser=check.measured.because,
        )

    def _name_quirk(self, method: Method, items: Any) -> None:
        """transformers multiplies the gradient of models that accept num_items_in_batch and do not use it."""
        factors = {} if method.kind == "items" else _multiplied_by(self.trainer, len(self._batches), items)
        for setting, (factor, correction) in factors.items():
            text = f"transformers multiplies this model's gradient by {factor} ({setting}): it takes the loss for "
            text += f"normalised by num_items_in_batch and it is not. nearpeak keeps it so. To correct it: {correction}"
            self.report.say(f"gradient_scale={factor}", text, level=logging.WARNING)


def _multiplied_by(trainer: Trainer, batches: int, items: Any) -> dict[str, tuple[int, str]]:
    """By what, and how to correct it; as this Trainer's training_step and compute_loss decide it."""
    accepts = bool(trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None
    stated = getattr(trainer, "loss_is_scaled_for_ga", None)
    found = {}
    if batches > 1 and (accepts if stated is None else stated):
        correction = "loss_is_scaled_for_ga = False on a subclass of Trainer"
        found["gradient_accumulation_steps"] = (batches, correction)
    ranks = trainer.accelerator.num_processes
    if ranks > 1 and accepts and items is not None and trainer.args.average_tokens_across_devices:
        found["number of ranks"] = (ranks, "average_tokens_across_devices=False in TrainingArguments")
    return found


def _fault(what: str, error: Exception) -> str:
    """What the log and the record say of it. No `warnings.warn`: a script may turn warnings into errors."""
    return f"{what}: {type(error).__name__}: {error}"[:300]


def _failure(check: Check, trials: list[Trial]) -> str:
    """Why no method holds."""
    if check.measured.kind is None and not any(trial.because for trial in trials if trial.method is None):
        return check.measured.because
    return "; ".join(f"{trial.name}: {trial.because}" for trial in trials if not trial.holds and trial.name != "bf16")


def _has_padding(batches: Sequence[Mapping[str, Any]]) -> bool:
    return any(not bool(batch["attention_mask"].all()) for batch in batches)
