"""The equivalence check: the gradient of one real window, regrouped, against the user's own path. Nothing is believed.

The user's own training step computes both, on a copy of the model without dropout. Of the methods that give the same
gradient up to rounding the fastest is chosen; if none does, the script's own way stays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from nearpeak.integrations._obstacles import model_of
from nearpeak.integrations._untouched import restore_dropout, untouched
from nearpeak.integrations._weights import Kind, Measured, measure_kind
from nearpeak.integrations._window import Method, MicroBatch, TrainingStep, budget_of, execute, micro_batches
from nearpeak.reason import Reason
from nearpeak.train.batches import concat_batches, real_lengths, take_rows, trim
from nearpeak.train.cost import CostModel, fit_cost, probe_shapes
from nearpeak.train.equivalence import Deviation, compare_gradients, gradients, holds
from nearpeak.train.kernels import apply_kernels, fastest_kernels
from nearpeak.train.packed import PackedAdapter

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["Check", "Trial"]

LOSS_LIMIT = {"fp32": 1e-5}
"""Largest relative difference of the logged loss that rounding explains; 16-bit losses have two digits."""
COARSE_LOSS_LIMIT = 1e-2


@dataclass(slots=True)
class Trial:
    """One method on the window, and whether it gave the user's own gradient."""

    name: Literal["packed", "partition", "bf16"]
    method: Method | None = None
    deviation: Deviation | None = None
    holds: bool = False
    because: str = ""
    window_ms: float = 0.0
    """Time of the window, with the model's own dropout; 0 where it was not taken."""


class Check:
    """One window on a copy of the model. `run` leaves no trace in the training."""

    def __init__(self, trainer: Trainer, step: TrainingStep, batches: Sequence[Mapping[str, Any]], items: Any) -> None:
        self.trainer, self.step, self.batches, self.items = trainer, step, batches, items
        self.precision = _precision_of(trainer)
        self.budget = budget_of(batches)
        self.measured = Measured(None, "nothing was measured")
        self.reference_ms = 0.0
        self.kernel_reasons: list[Reason] = []

    def run(
        self, wanted: Sequence[Method] = (), bf16: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    ) -> list[Trial]:
        """Try `wanted`, or all methods, and computing in `bf16` where asked; says of each whether it holds."""
        self.model = model_of(self.trainer)
        with untouched(self.trainer) as self.clone:
            shifted = bool(getattr(self.trainer, "_loss_shifts_labels", False))
            self.measured = self._measure(shifted)
            if self.measured.kind is None and bf16 is None:
                return []
            self._take_reference()
            trials = [self._try(m) for m in wanted or self._methods(self.measured.kind, shifted)]
            holding = [trial for trial in trials if trial.holds]
            if bf16 is not None:
                trials.append(self._try_bf16(bf16, holding))
            if not wanted:
                with bf16() if bf16 is not None and trials[-1].holds else contextlib.nullcontext():
                    self._time(holding)
            return trials

    def _measure(self, shifted: bool) -> Measured:
        try:
            return measure_kind(self._loss, self.batches, self.items, shifted)
        except Exception as error:  # noqa: BLE001  a step may take whole batches only; see Regrouping._checked
            return Measured(None, f"its step raised {type(error).__name__} on a few rows of the window: {error}"[:300])

    def _methods(self, kind: Kind | None, shifted: bool) -> list[Method]:
        if kind is None:
            return []
        adapter, _ = PackedAdapter.find(self.clone)
        kernels, self.kernel_reasons = fastest_kernels(self.model, self.trainer.args.device)
        packed = [Method("packed", kind, shifted, adapter=adapter, kernels=kernels)] if adapter else []
        return [*packed, Method("partition", kind, shifted, kernels=kernels)]

    def _loss(self, batch: Mapping[str, Any], items: Any) -> float:
        """The user's own loss of some rows, as their step returns it."""
        return float(self.step(self.clone, _copy(batch, type(self.batches[0])), items).detach())

    def _own_way(self) -> float:
        """The user's own path through the window; its gradient is on the copy afterwards."""
        self.clone.zero_grad(set_to_none=True)
        return sum(self._loss(batch, self.items) for batch in self.batches)

    def _take_reference(self) -> None:
        started = time.perf_counter()
        self.reference_loss = self._own_way()
        self.reference_ms = (time.perf_counter() - started) * 1000
        self.reference = gradients(self.clone)

    def _try(self, method: Method) -> Trial:
        """Run one method; what it raises is a reason against the method, not against the training."""
        trial = Trial(method.name, method)
        try:
            loss = self._regrouped(method)
        except Exception as error:  # noqa: BLE001  part of the one boundary: see Regrouping._checked
            trial.because = f"it raised {type(error).__name__}: {error}"[:300]
            return trial
        self._judge(trial, loss, self.precision)
        return trial

    def _try_bf16(self, bf16: Callable[[], contextlib.AbstractContextManager[None]], holding: list[Trial]) -> Trial:
        """The same gradient under bf16: what its rounding does."""
        trial = Trial("bf16")
        method = holding[0].method if holding else None
        with bf16():
            loss = self._regrouped(method) if method else self._own_way()
        self._judge(trial, loss, "bf16")
        return trial

    def _judge(self, trial: Trial, loss: float, precision: str) -> None:
        trial.deviation = compare_gradients(self.reference, gradients(self.clone))
        relative = abs(loss - self.reference_loss) / max(abs(self.reference_loss), 1e-12)
        same_loss = relative <= LOSS_LIMIT.get(precision, COARSE_LOSS_LIMIT)
        moved = any(bool(gradient.ne(0).any()) for gradient in self.reference.values())
        trial.holds = moved and same_loss and holds(trial.deviation, precision)
        trial.because = f"gradient: {trial.deviation}"
        if not same_loss:
            trial.because = f"the loss differs by {relative:.1e} (relative)"
        if not moved:
            trial.because = "the script's own step leaves no gradient on the model that it is given"

    def _regrouped(self, method: Method) -> float:
        adapter = PackedAdapter.find(self.clone)[0] if method.adapter else None
        self.clone.zero_grad(set_to_none=True)
        undo = apply_kernels(self.clone, method.kernels)
        try:
            return self._execute(micro_batches(self.batches, replace(method, adapter=adapter), self.budget))
        finally:
            undo()

    def _execute(self, parts: Sequence[MicroBatch]) -> float:
        return float(execute(self.trainer, self.step, self.clone, parts, self.items))

    def _time(self, trials: list[Trial]) -> None:
        """Time what holds, and fit the partition's cost to this machine where it wins."""
        restore_dropout(self.clone, self.model)
        for trial in trials:
            assert trial.method is not None
            started = time.perf_counter()
            self._regrouped(trial.method)  # reading the loss waits for the device
            trial.window_ms = (time.perf_counter() - started) * 1000
        best = min(trials, key=lambda trial: trial.window_ms, default=None)
        if best is not None and best.name == "partition":
            assert best.method is not None
            best.method = replace(best.method, cost=self._measured_cost() or best.method.cost)

    def _measured_cost(self) -> CostModel | None:
        merged = concat_batches(self.batches)
        lengths = real_lengths(merged) or []
        longest_first = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        shapes = probe_shapes(lengths, self.budget)
        if len(shapes) < 3:
            return None
        batches = [(n, length, _shaped(merged, longest_first, n, length)) for n, length in shapes]
        self._probe_ms(batches[0][2])  # the first call of a shape's kernels is never a fair one
        return fit_cost([(n, length, self._probe_ms(batch)) for n, length, batch in batches]).model

    def _probe_ms(self, batch: dict[str, Any]) -> float:
        started = time.perf_counter()
        self._loss(batch, self.items)
        return (time.perf_counter() - started) * 1000


def _shaped(merged: dict[str, Any], longest_first: list[int], samples: int, length: int) -> dict[str, Any]:
    """A batch of this shape made of a window's longest rows."""
    rows = (longest_first * (samples // len(longest_first) + 1))[:samples]
    return trim(take_rows(merged, rows), length)


def _copy(batch: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    """A user's step may change its inputs in place, and the window is still to be trained on."""
    copied = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    return copied if kind is dict else kind(copied)


def _precision_of(trainer: Trainer) -> str:
    """What rounding to expect of the user's own path."""
    mixed = getattr(trainer.accelerator, "mixed_precision", "no")
    if mixed in ("bf16", "fp16"):
        return mixed
    dtypes = {p.dtype for p in model_of(trainer).parameters() if p.requires_grad}
    if torch.float16 in dtypes or torch.bfloat16 in dtypes or mixed not in ("no", None):
        return "bf16"
    tf32 = trainer.args.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if tf32 else "fp32"
