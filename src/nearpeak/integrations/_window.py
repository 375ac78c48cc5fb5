"""The batches of one optimizer step, cut into better micro-batches and executed by the user's own training step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from nearpeak.integrations._obstacles import lengths_of
from nearpeak.integrations._weights import Kind, Weights, weights_of
from nearpeak.train.batches import concat_batches, take_rows
from nearpeak.train.cost import UNMEASURED, CostModel
from nearpeak.train.kernels import Kernels
from nearpeak.train.packed import PackedAdapter
from nearpeak.train.windows import pack, partition

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["Method", "MicroBatch", "budget_of", "execute", "micro_batches"]

TrainingStep = Callable[..., torch.Tensor]
"""The user's own: (model, inputs, num_items_in_batch) → loss, with the gradients added."""


@dataclass(frozen=True, slots=True)
class Method:
    """How windows are regrouped."""

    name: Literal["packed", "partition"]
    kind: Kind
    shifted: bool = False
    """Whether labels are shifted by one token before they are counted."""
    cost: CostModel = UNMEASURED
    adapter: PackedAdapter | None = None
    kernels: Kernels = field(default_factory=Kernels)


@dataclass(slots=True)
class MicroBatch:
    """Inputs for one call of the training step."""

    inputs: Mapping[str, Any]
    scale: float
    """By what its loss is multiplied, so that each sample keeps its weight."""
    tokens: int
    """What is computed, padding included."""
    active: contextlib.AbstractContextManager[None] = field(default_factory=contextlib.nullcontext)
    """Open during forward and backward."""


def budget_of(batches: Sequence[Mapping[str, Any]]) -> int:
    """Padded tokens of the largest batch: what the user's own path would hold in memory for this window."""
    return max(batch["input_ids"].numel() for batch in batches)


def micro_batches(batches: Sequence[Mapping[str, Any]], method: Method, max_tokens: int) -> list[MicroBatch]:
    """Regroup a window."""
    lengths = lengths_of(batches)
    assert lengths is not None
    merged, weights = concat_batches(batches), weights_of(batches, method.kind, method.shifted)
    rows = [group for part in weights.groups() for group in _split(part, lengths, method, max_tokens)]
    # Rows whose labels are all ignored add nothing; alone in a micro-batch they would make its mean 0 / 0.
    return [_micro_batch(merged, group, weights, method, type(batches[0])) for group in rows if weights.scale(group)]


def _split(part: list[int], lengths: list[int], method: Method, max_tokens: int) -> list[list[int]]:
    """Micro-batches of rows that may share one."""
    part = sorted(part, key=lengths.__getitem__)
    own = [lengths[row] for row in part]
    if method.name == "packed":
        groups = pack(own, max_tokens=max_tokens)
    else:
        groups = partition(own, method.cost, max_tokens=max_tokens)
    return [[part[index] for index in group] for group in groups]


def _micro_batch(merged: dict[str, Any], rows: list[int], weights: Weights, method: Method, kind: type) -> MicroBatch:
    taken = take_rows(merged, rows)
    active: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if method.adapter is not None:
        taken, packing = method.adapter.pack(taken)
        active = method.adapter(packing)
    tokens = taken["input_ids"].numel()
    return MicroBatch(_as_kind(taken, kind), weights.scale(rows), tokens, active)


def _as_kind(inputs: dict[str, Any], kind: type) -> Mapping[str, Any]:
    """The user's own kind of mapping: a compute_loss may read `inputs.labels` from a BatchEncoding."""
    return inputs if kind is dict else kind(inputs)


def execute(
    trainer: Trainer, step: TrainingStep, model: torch.nn.Module, parts: Sequence[MicroBatch], items: Any
) -> torch.Tensor:
    """Run the micro-batches of one window; under data parallelism only the last one synchronises."""
    loss = torch.zeros((), device=trainer.args.device)
    for part in parts:
        last = part is parts[-1]
        synced = contextlib.nullcontext() if last else trainer.accelerator.no_sync(model=model)
        with synced, part.active, _scaled_backward(trainer.accelerator, part.scale):
            loss = loss + step(model, part.inputs, items).detach() * part.scale
    return loss


@contextlib.contextmanager
def _scaled_backward(accelerator: Any, scale: float) -> Iterator[None]:
    """Multiply what reaches backward, wherever a subclass got its loss from."""
    if scale == 1:
        yield
        return
    backward = accelerator.backward
    accelerator.backward = lambda loss, **kwargs: backward(loss * scale, **kwargs)
    try:
        yield
    finally:
        # The method of the class shows again; another wrapper that stood here before is put back.
        if getattr(backward, "__self__", None) is accelerator:
            del accelerator.backward
        else:
            accelerator.backward = backward
