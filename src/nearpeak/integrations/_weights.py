"""What weight the user's own path gives each sample, found by measuring its loss.

A Trainer's batch i has a loss that is one of three things, and code does not tell which:

    items     sum over its samples or tokens / items of the whole window    weight 1 / items, whatever the grouping
    targets   mean over its tokens that have a label                        weight 1 / targets of batch i
    samples   mean over its rows                                            weight 1 / rows of batch i

Rows of batches with the same normaliser may share a micro-batch; its loss is scaled by its own normaliser / theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from nearpeak.train.batches import IGNORED_LABEL, concat_batches, real_lengths, take_rows

__all__ = ["Kind", "Measured", "Weights", "measure_kind", "weights_of"]

Kind = Literal["items", "targets", "samples"]
LossOf = Callable[[Mapping[str, Any], Any], float]
"""The user's own loss of (batch, num_items_in_batch)."""
CLOSE = 0.01
"""The hypotheses differ by whole factors; rounding, even in bf16, by less than this."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch's loss is a mean over; `kind` is None where it is none of the three, and `because` says so."""

    kind: Kind | None
    because: str


@dataclass(frozen=True, slots=True)
class Weights:
    """Each row's share in its original batch's normaliser, and that normaliser."""

    units: list[int]
    """What a row counts: 1, or its labelled tokens."""
    totals: list[int]
    """The normaliser of the batch that the row came in."""

    def groups(self) -> list[list[int]]:
        """Rows that may share a micro-batch: those whose batches have the same normaliser."""
        rows: dict[int, list[int]] = {}
        for row, total in enumerate(self.totals):
            rows.setdefault(total, []).append(row)
        return list(rows.values())

    def scale(self, rows: Sequence[int]) -> float:
        """By what the loss of a micro-batch of these rows must be multiplied: its normaliser / the original one."""
        total = self.totals[rows[0]]
        # No normaliser of its own: the loss is a sum already, divided by the whole window's items.
        return sum(self.units[row] for row in rows) / total if total else 1.0


def weights_of(batches: Sequence[Mapping[str, Any]], kind: Kind, shifted: bool) -> Weights:
    """Weights of a window's rows, in stream order."""
    if kind == "items":
        return _summed(sum(len(batch["input_ids"]) for batch in batches))
    units = [target_counts(batch, shifted) if kind == "targets" else [1] * len(batch["input_ids"]) for batch in batches]
    totals = [[sum(counts)] * len(counts) for counts in units]
    return Weights([u for counts in units for u in counts], [t for counts in totals for t in counts])


def _summed(rows: int) -> Weights:
    return Weights(units=[0] * rows, totals=[0] * rows)


def target_counts(batch: Mapping[str, Any], shifted: bool) -> list[int]:
    """Labelled tokens of each row, as the loss counts them."""
    labels = batch.get("shift_labels", batch["labels"])
    if "shift_labels" not in batch and shifted:
        labels = labels[:, 1:]
    return labels.ne(IGNORED_LABEL).reshape(len(labels), -1).sum(1).tolist()


def measure_kind(loss_of: LossOf, batches: Sequence[Mapping[str, Any]], items: Any, shifted: bool) -> Measured:
    """Find what the user's loss is a mean over, from a few short rows of a real window."""
    batch = _few_rows(batches)
    if items is not None:
        ratio = _ratio(loss_of(batch, items), loss_of(batch, items * 2))
        if abs(ratio - 2) < CLOSE:
            return Measured("items", "the loss is normalised by num_items_in_batch")
        if not abs(ratio - 1) < CLOSE:
            return Measured(None, f"doubling num_items_in_batch divides the loss by {ratio:.3g}, neither 1 nor 2")
    return _measure_mean(loss_of, batch, items, shifted)


def _few_rows(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The shortest row, a middling one and one between: cheap, and of different lengths where the window has any."""
    merged = concat_batches(batches)
    lengths = real_lengths(merged) or []
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    picks = sorted({0, len(order) // 4, len(order) // 2})
    return take_rows(merged, [order[pick] for pick in picks])


def _measure_mean(loss_of: LossOf, batch: dict[str, Any], items: Any, shifted: bool) -> Measured:
    rows = len(batch["input_ids"])
    hypotheses = _hypotheses(batch, shifted)
    if rows == 1 or len(hypotheses) == 1:
        return Measured(hypotheses[0][0], f"the loss is taken for a mean over {hypotheses[0][0]}")
    whole, first, rest = (loss_of(_rows(batch, part), items) for part in (range(rows), range(1), range(1, rows)))
    errors = {}
    for kind, counts in hypotheses:
        share = counts[0] / sum(counts)
        errors[kind] = abs(_ratio(share * first + (1 - share) * rest, whole) - 1)
    # Listed first, target tokens win a draw: where each row has as many, the two are the same.
    best = min(errors, key=errors.__getitem__)
    if not errors[best] < CLOSE:
        return Measured(None, "a batch's loss is no mean over its samples or target tokens")
    return Measured(best, f"a batch's loss is the mean over its {best}")


def _hypotheses(batch: dict[str, Any], shifted: bool) -> list[tuple[Kind, list[int]]]:
    """The means that a batch's labels allow, each with what every row counts in it."""
    labels = batch.get("shift_labels", batch.get("labels"))
    samples: tuple[Kind, list[int]] = ("samples", [1] * len(batch["input_ids"]))
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return [samples]
    counts = target_counts(batch, shifted)
    return [("targets", counts), samples] if sum(counts) else [samples]


def _rows(batch: dict[str, Any], rows: range) -> dict[str, Any]:
    """A slice of rows at the width they have: what is measured is the mean, not the effect of padding."""
    size = len(batch["input_ids"])
    return {key: value[rows.start : rows.stop] if _sized(value, size) else value for key, value in batch.items()}


def _sized(value: Any, size: int) -> bool:
    return isinstance(value, torch.Tensor | list | tuple) and len(value) == size


def _ratio(left: float, right: float) -> float:
    return left / right if right else float("nan")
