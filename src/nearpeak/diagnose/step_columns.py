"""Steps of one process as arrays, one a column; what was not measured is NaN."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from nearpeak.recording import Recording, StepRecord
from nearpeak.recording.arrays import read_columns

__all__ = ["StepColumns"]

KEYS = ("process", "step", "ended_ns")


@dataclass(frozen=True, slots=True)
class StepColumns:
    """In the order of the steps."""

    numbers: np.ndarray
    ended_ns: np.ndarray
    """Unix time, exact to a microsecond; NaN where it is not known."""
    values: dict[str, np.ndarray]

    @classmethod
    def read(cls, recording: Recording) -> dict[int, StepColumns]:
        """By process: the steps whose time is known, and all figures that were measured at least once."""
        names = tuple(field.name for field in fields(StepRecord))
        table = read_columns(recording, StepRecord, names, where="wall_s IS NOT NULL")
        of = table.pop("process")
        return {int(process): cls._of(table, of == process) for process in np.unique(of)}

    @classmethod
    def _of(cls, table: dict[str, np.ndarray], rows: np.ndarray) -> StepColumns:
        values = {name: column[rows] for name, column in table.items() if name not in KEYS}
        known = {name: column for name, column in values.items() if not np.isnan(column).all()}
        return cls(table["step"][rows].astype(np.int64), table["ended_ns"][rows], known)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def wall_ms(self) -> np.ndarray:
        return 1e3 * self.values["wall_s"]

    @property
    def begins_ns(self) -> int:
        """When the first step began, in Unix time; 0 where no step has its time."""
        begins = self.ended_ns - 1e6 * self.wall_ms
        return 0 if np.isnan(begins).all() else int(np.nanmin(begins))

    @property
    def ends_ns(self) -> int:
        return 0 if np.isnan(self.ended_ns).all() else int(np.nanmax(self.ended_ns))

    def only(self, keep: np.ndarray) -> StepColumns:
        """Of its steps those that are marked."""
        kept = {name: column[keep] for name, column in self.values.items()}
        known = {name: column for name, column in kept.items() if not np.isnan(column).all()}
        return StepColumns(self.numbers[keep], self.ended_ns[keep], known)

    def since(self, first: int) -> StepColumns:
        """Without the steps before number `first`."""
        return self.only(self.numbers >= first)

    def means(self) -> dict[str, float]:
        """Of every column over the steps that know it."""
        return {name: float(np.nanmean(column)) for name, column in self.values.items()}

    def at(self, name: str, step: int | None) -> float | None:
        """One step's figure; None where it is not known."""
        if step is None or name not in self.values:
            return None
        position = int(np.searchsorted(self.numbers, step))
        found = position < len(self) and self.numbers[position] == step
        value = float(self.values[name][position]) if found else float("nan")
        return None if np.isnan(value) else value

    def median(self, name: str) -> float | None:
        return float(np.nanmedian(self.values[name])) if name in self.values else None

    def ends(self, name: str) -> tuple[float, float] | None:
        """First and last value that is known."""
        if name not in self.values:
            return None
        known = self.values[name][~np.isnan(self.values[name])]
        return float(known[0]), float(known[-1])
