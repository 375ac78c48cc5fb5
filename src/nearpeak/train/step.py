"""`Step`: what one optimizer step did. Its figures stay on the device until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nearpeak.errors import LossNotFiniteError
from nearpeak.train.seeding import SampleRef

__all__ = ["LateFigure", "LossWatch", "Step"]


class LateFigure:
    """A number on the device, on its way to the host without making either wait."""

    __slots__ = ("_event", "_host")

    def __init__(self, value: torch.Tensor):
        self._event = None
        if value.device.type != "cuda":
            self._host = value
            return
        self._host = torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    @property
    def is_here(self) -> bool:
        """Whether reading would not wait."""
        return self._event is None or self._event.query()

    def read(self) -> float:
        """The number; waits for the device if it is not here yet."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return float(self._host)


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step that was executed."""

    index: int
    """From 0."""
    learning_rate: float
    """Of the update that was made."""
    samples: int
    """Samples of the whole window, over all ranks."""
    tokens: int | None
    """Real tokens of this rank's share; None where samples have no length."""
    padded_tokens: int | None
    micro_batches: int
    wall_s: float
    wait_s: float
    """How much of it was waiting for input."""
    last: bool
    late_loss: LateFigure
    late_grad_norm: LateFigure | None

    @property
    def loss(self) -> float:
        """Mean loss of the window. Reading it waits for the device; not reading costs nothing."""
        return self.late_loss.read()

    @property
    def grad_norm(self) -> float | None:
        """Norm of the window's gradient before clipping; None where the job does not clip."""
        return None if self.late_grad_norm is None else self.late_grad_norm.read()


class LossWatch:
    """Stops a run whose loss is not a number, naming the samples; on CUDA a few steps late, so that nothing waits."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, LateFigure, list[torch.Tensor], Sequence[tuple[SampleRef, ...]]]] = []

    def add(
        self, step: int, loss: LateFigure, losses: list[torch.Tensor], refs: Sequence[tuple[SampleRef, ...]]
    ) -> None:
        """Watch a step's loss, keeping the micro-batches' own until it is known to be finite."""
        self._pending.append((step, loss, losses, refs))

    def check(self, wait: bool = False) -> None:
        """Raise for the first step whose loss has arrived and is not finite."""
        while self._pending and (wait or self._pending[0][1].is_here):
            step, loss, losses, refs = self._pending.pop(0)
            if not math.isfinite(loss.read()):
                raise loss_not_finite(step, loss.read(), losses, refs)


def loss_not_finite(
    step: int, loss: float, losses: Sequence[torch.Tensor], refs: Sequence[tuple[SampleRef, ...]]
) -> LossNotFiniteError:
    """The error that names the samples of the micro-batches whose own loss is not finite."""
    bad = [members for value, members in zip(losses, refs, strict=True) if not math.isfinite(float(value))]
    indices = sorted({ref[0] for members in bad for ref in members})
    shown = ", ".join(map(str, indices[:20])) + (", …" if len(indices) > 20 else "")
    where = f"among the samples with dataset index {shown}" if bad else "on another rank"
    message = (
        f"The loss of optimizer step {step} is {loss}: {where}. Look for labels out of range or empty samples; else "
        "lower the learning rate, clip the gradient (Job(clip_norm=1.0)) or use precision='fp32'."
    )
    return LossNotFiniteError(message, step=step, samples=tuple(indices))
