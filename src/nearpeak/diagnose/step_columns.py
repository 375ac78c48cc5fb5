"""Steps of one process as arrays, one a column; what was not measured is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from nearpeak.recording import StepRecord

__all__ = ["StepColumns"]

KEYS = ("process", "step", "ended_ns")


@dataclass(frozen=True, slots=True)
class StepColumns:
    """In the order of the steps."""

    numbers: list[int]
    ended_ns: list[int | None]
    values: dict[str, np.ndarray]

    @classmethod
    def of(cls, steps: Sequence[StepRecord]) -> StepColumns:
        """All numeric columns that were measured at least once."""
        names = [field.name for field in fields(StepRecord) if field.name not in KEYS]
        made = {name: np.array([getattr(step, name) for step in steps], dtype=float) for name in names}
        known = {name: column for name, column in made.items() if not np.isnan(column).all()}
        return cls([step.step for step in steps], [step.ended_ns for step in steps], known)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def wall_ms(self) -> np.ndarray:
        return 1e3 * self.values["wall_s"]

    @property
    def begins_ns(self) -> int:
        """When the first step began, in Unix time; 0 where no step has its time."""
        known = [(end, wall) for end, wall in zip(self.ended_ns, self.wall_ms, strict=True) if end is not None]
        return min((int(end - 1e6 * wall) for end, wall in known), default=0)

    @property
    def ends_ns(self) -> int:
        return max((end for end in self.ended_ns if end is not None), default=0)

    def since(self, first: int) -> StepColumns:
        """Without the steps before number `first`."""
        keep = np.array([number >= first for number in self.numbers])
        return StepColumns(
            [number for number in self.numbers if number >= first],
            [end for end, kept in zip(self.ended_ns, keep, strict=True) if kept],
            {name: column[keep] for name, column in self.values.items() if not np.isnan(column[keep]).all()},
        )

    def means(self) -> dict[str, float]:
        """Of every column over the steps that know it."""
        return {name: float(np.nanmean(column)) for name, column in self.values.items()}

    def median(self, name: str) -> float | None:
        return float(np.nanmedian(self.values[name])) if name in self.values else None

    def ends(self, name: str) -> tuple[float, float] | None:
        """First and last value that is known."""
        if name not in self.values:
            return None
        known = self.values[name][~np.isnan(self.values[name])]
        return float(known[0]), float(known[-1])
