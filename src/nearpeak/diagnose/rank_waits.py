"""Who is slow among the ranks: in a step that ends for all at once, the one that waited least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from nearpeak.diagnose.step_columns import StepColumns

__all__ = ["Slowest", "own_ms", "slowest"]


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that holds the others up."""

    position: int
    """In the order of the ranks."""
    ms: float
    """Per step: its own work beyond the mean of the others'."""
    share_of_steps: float
    """In how many steps it was the slowest."""


def own_ms(columns: Sequence[StepColumns]) -> np.ndarray:
    """Rank × step: each rank's step without its waits for others.

    A rank waits in collectives that the training thread calls, and inside the backward pass, where gradients are
    exchanged: what its backward pass takes beyond the shortest one of that step is waiting, since all compute alike.
    """
    backward = _matrix(columns, "backward_ms")
    waited = _matrix(columns, "communication_ms") + backward - backward.min(axis=0)
    return np.array([each.wall_ms for each in columns]) - waited


def slowest(columns: Sequence[StepColumns]) -> Slowest | None:
    """None for one rank, and where ranks did not record the same steps or no phases."""
    common = reduce(np.intersect1d, (each.numbers for each in columns))
    if len(columns) < 2 or not len(common) or any("backward_ms" not in each.values for each in columns):
        return None
    own = own_ms([each.only(np.isin(each.numbers, common)) for each in columns])
    means = own.mean(axis=1)
    position = int(means.argmax())
    others = np.delete(means, position).mean()
    return Slowest(position, float(means[position] - others), float((own.argmax(axis=0) == position).mean()))


def _matrix(columns: Sequence[StepColumns], name: str) -> np.ndarray:
    rows = [each.values.get(name, np.zeros(len(each))) for each in columns]
    return np.nan_to_num(np.array(rows))
