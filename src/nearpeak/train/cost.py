"""What a micro-batch costs: T = launch + token·n·L + square·n·L², fitted to a handful of measured shapes.

Three terms are enough for a transformer: linear layers and everything element-wise grow with the tokens, attention with
their square, and launching grows with neither. On a quiet CPU eight probes predict held-out shapes to 5-7 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from nearpeak.errors import SettingError

__all__ = ["CostFit", "CostModel", "fit_cost", "probe_shapes"]

Probe = tuple[int, int, float]
"""(samples, length, ms) of one measured micro-batch."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Time of one micro-batch of `samples` rows padded to `length`."""

    launch_ms: float = 1.0
    token_ms: float = 0.02
    square_ms: float = 1e-5

    def sample_ms(self, length: int) -> float:
        """What one more row of this length adds."""
        return self.token_ms * length + self.square_ms * length * length

    def micro_batch_ms(self, samples: int, length: int) -> float:
        return self.launch_ms + samples * self.sample_ms(length)


@dataclass(frozen=True, slots=True)
class CostFit:
    """A cost model with how well it explains what it was fitted to."""

    model: CostModel
    median_error: float
    probes: int


# Before anything is measured only ratios matter: a launch is worth about 60 tokens on every machine measured.
UNMEASURED = CostModel(launch_ms=1.2, token_ms=0.02, square_ms=1e-5)


def fit_cost(probes: Sequence[Probe]) -> CostFit:
    """Fit by relative least squares; no term may be negative, since no real cost is."""
    import numpy as np

    if len(probes) < 3:
        raise SettingError(f"{len(probes)} probes cannot determine 3 cost terms: measure at least 3 shapes.")
    shapes = np.array([(1.0, n * length, n * length * length) for n, length, _ in probes])
    times_ms = np.array([ms for *_, ms in probes])
    terms = _non_negative_least_squares(shapes / times_ms[:, None], np.ones(len(probes)))
    errors = np.abs(shapes @ terms - times_ms) / times_ms
    model = CostModel(launch_ms=float(terms[0]), token_ms=float(terms[1]), square_ms=float(terms[2]))
    return CostFit(model=model, median_error=float(np.median(errors)), probes=len(probes))


def _non_negative_least_squares(matrix, target):  # type: ignore[no-untyped-def]
    """With three terms, trying every set of active ones is exact and shorter than an iterative solver."""
    import numpy as np

    best, best_residual = np.zeros(matrix.shape[1]), np.inf
    for active in _active_sets(matrix.shape[1]):
        columns = matrix[:, active]
        # Columns differ by orders of magnitude; scaled, the solver keeps its digits.
        scale = np.linalg.norm(columns, axis=0)
        solution = np.linalg.lstsq(columns / scale, target, rcond=None)[0] / scale
        residual = float(np.sum((columns @ solution - target) ** 2))
        if (solution >= 0).all() and residual < best_residual:
            best, best_residual = np.zeros(matrix.shape[1]), residual
            best[list(active)] = solution
    return best


def _active_sets(terms: int) -> list[tuple[int, ...]]:
    return [s for size in range(1, terms + 1) for s in itertools.combinations(range(terms), size)]


def probe_shapes(lengths: Sequence[int], max_tokens: int | None = None) -> list[tuple[int, int]]:
    """Up to 8 (samples, length) shapes that span what a window of these lengths will make."""
    ordered = sorted(lengths)
    picks = sorted({ordered[int(q * (len(ordered) - 1))] for q in (0.1, 0.5, 0.9, 1.0)})
    shapes = [(n, length) for length in picks for n in (1, max(2, len(ordered) // 4))]
    fitting = [(n, length) for n, length in shapes if max_tokens is None or n * length <= max_tokens]
    return fitting or [(1, length) for length in picks]
