"""As many points as there are pixels. What is drawn keeps the extremes: a peak of one step stays in sight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GAP_FACTOR",
    "MOST_BINS",
    "Grid",
    "Summary",
    "bin_means",
    "bin_peaks",
    "bin_summary",
    "finite",
    "grid_over",
    "held",
    "usual_distance",
]

Floats = NDArray[np.float64]
MOST_BINS = 320
"""Columns of a chart: about two pixels each where it is widest, one on a phone."""
GAP_FACTOR = 8
"""Nothing is drawn where nothing was read for so many times the usual distance."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal bins from `start` to `end`."""

    start: float
    end: float
    bins: int

    @property
    def centres(self) -> Floats:
        return self.start + (np.arange(self.bins) + 0.5) * (self.end - self.start) / self.bins

    def index(self, x: Floats) -> NDArray[np.int64]:
        """Each value's bin; what lies outside falls into the outermost."""
        span = self.end - self.start
        scaled = (x - self.start) * (self.bins / span) if span > 0 else np.zeros_like(x)
        return np.clip(scaled, 0, self.bins - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Summary:
    """What lies in each bin; NaN where nothing does."""

    low: Floats
    p10: Floats
    median: Floats
    p90: Floats
    high: Floats


def finite(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The points both of whose figures are known."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def grid_over(xs: list[Floats], bins: int = MOST_BINS) -> Grid | None:
    """Bins over all the values, no more than the longest list has; None where there is no value."""
    filled = [x[np.isfinite(x)] for x in xs]
    filled = [x for x in filled if len(x)]
    if not filled:
        return None
    start, end = min(float(x.min()) for x in filled), max(float(x.max()) for x in filled)
    return Grid(start, end, max(1, min(bins, max(len(x) for x in filled))))


def bin_summary(grid: Grid, x: Floats, y: Floats) -> Summary:
    """Extremes, tenths and median of the values in each bin."""
    x, y = finite(x, y)
    index = grid.index(x)
    values = y[np.argsort(index.astype(np.int16), kind="stable")]
    counts = np.bincount(index, minlength=grid.bins)
    starts = np.concatenate([[0], counts.cumsum()[:-1]])
    for start, count in zip(starts, counts, strict=True):
        values[start : start + count].sort()
    return Summary(*(_quantile(values, starts, counts, share) for share in (0.0, 0.1, 0.5, 0.9, 1.0)))


def bin_means(grid: Grid, x: Floats, y: Floats) -> Floats:
    """The mean of the values in each bin."""
    x, y = finite(x, y)
    index = grid.index(x)
    sums = np.bincount(index, weights=y, minlength=grid.bins)
    counts = np.bincount(index, minlength=grid.bins)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def bin_peaks(grid: Grid, x: Floats, parts: list[Floats]) -> list[Floats]:
    """All parts at that moment of each bin at which their sum is greatest."""
    stacked = np.nan_to_num(np.asarray(parts, dtype=np.float64))
    index = grid.index(np.asarray(x, dtype=np.float64))
    order = np.lexsort((stacked.sum(axis=0), index))
    last = np.flatnonzero(np.diff(index[order], append=grid.bins))
    chosen = order[last]
    result = np.full((len(parts), grid.bins), np.nan)
    result[:, index[chosen]] = stacked[:, chosen]
    return list(result)


def usual_distance(known: NDArray[np.intp]) -> float:
    """Between two bins in which something lies."""
    return float(np.median(np.diff(known))) if len(known) > 1 else 1.0


def held(values: Floats, *, gaps: bool = True) -> Floats:
    """Empty bins between two readings take the nearer one; with `gaps` a longer silence than usual stays unknown."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return values
    here = np.arange(len(values))
    after = np.searchsorted(known, here).clip(0, len(known) - 1)
    before = (after - 1).clip(0)
    nearest = np.where(np.abs(known[after] - here) < np.abs(known[before] - here), known[after], known[before])
    reach = GAP_FACTOR / 2 * usual_distance(known) if gaps else len(values)
    near = np.abs(nearest - here) <= reach
    return np.where(near, values[nearest], np.nan)


def _quantile(values: Floats, starts: NDArray[np.int64], counts: NDArray[np.int64], share: float) -> Floats:
    if not len(values):
        return np.full(len(starts), np.nan)
    positions = starts + np.floor(share * (counts - 1) + 0.5).astype(np.int64)
    return np.where(counts > 0, values[np.clip(positions, 0, len(values) - 1)], np.nan)
