"""Puts a `Timeline` together from columns that come stream by stream, table by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace.timeline import Device, Kind, Lane, Steps, Timeline

__all__ = ["LATEST_NS", "LONGEST_NS", "Assembly", "kinds_of", "named"]

Int64s = NDArray[np.int64]

LONGEST_NS = 10 * 365 * 24 * 3600 * 10**9
"""No trace lasts ten years: what begins that long after the rest, or lasts as long, is damage."""
LATEST_NS = 1 << 62
"""In the year 2116: times behind it could not be added to."""
UNKNOWN = -1
KEPT_AS = (np.int64, np.int64, np.uint8, np.int32, np.int32, np.int64, np.int64)
"""Begin, duration, kind, lane, name, correlation, bytes."""


class Assembly:
    """Columns of one process, grown part by part."""

    def __init__(self, source: str):
        self.source = source
        self.notes: list[str] = []
        self.devices: list[Device] = []
        self._lanes: dict[Lane, int] = {}
        self._names: dict[str, int] = {}
        self._parts: list[list[NDArray[Any]]] = [[] for _ in KEPT_AS]

    def lane(self, process: str, thread: str, device: int | None = None) -> int:
        """Index of a lane, the same for the same lane."""
        return self._lanes.setdefault(Lane(process=process, thread=thread, device=device), len(self._lanes))

    def name(self, text: str) -> int:
        """Index of a name, the same for the same name."""
        return self._names.setdefault(text, len(self._names))

    def add(
        self,
        *,
        start_ns: Int64s,
        duration_ns: Int64s,
        kind: Int64s | int,
        lane: Int64s | int,
        name: Int64s | int,
        correlation: Int64s | int = UNKNOWN,
        n_bytes: Int64s | int = UNKNOWN,
    ) -> None:
        """Some events; a single number stands for all of them."""
        columns = (start_ns, duration_ns, kind, lane, name, correlation, n_bytes)
        for parts, column, kept_as in zip(self._parts, columns, KEPT_AS, strict=True):
            parts.append(np.broadcast_to(np.asarray(column, dtype=kept_as), start_ns.shape))

    def timeline(self, steps: Steps | None = None) -> Timeline:
        """Everything added, sorted; times count from the first event, or from the first step if that is earlier.

        Parts are let go column by column: a large trace is never held twice.
        """
        start_ns, duration_ns = self._taken(0), self._taken(1)
        order = self._sound_in_order(start_ns, duration_ns)
        start_ns, duration_ns = start_ns[order], duration_ns[order]
        kind, lane, name, correlation, n_bytes = (self._taken(position)[order] for position in range(2, len(KEPT_AS)))
        origin_ns = self._origin(start_ns, steps)
        start_ns -= origin_ns
        return Timeline(
            source=self.source,
            origin_ns=origin_ns,
            start_ns=start_ns,
            duration_ns=duration_ns,
            kind=kind,
            lane=lane,
            name=name,
            correlation=correlation,
            n_bytes=n_bytes,
            names=tuple(self._names),
            lanes=tuple(self._lanes),
            devices=tuple(self.devices),
            notes=tuple(self.notes),
            steps=_shifted(steps, origin_ns),
        )

    def _taken(self, position: int) -> NDArray[Any]:
        """One column in one piece; its parts are forgotten."""
        parts, self._parts[position] = self._parts[position], []
        return np.concatenate(parts) if parts else np.zeros(0, dtype=KEPT_AS[position])

    def _origin(self, start_ns: Int64s, steps: Steps | None) -> int:
        firsts = [int(column[0]) for column in (start_ns, steps.start_ns if steps else _EMPTY) if len(column)]
        return min(firsts, default=0)

    def _sound_in_order(self, start_ns: Int64s, duration_ns: Int64s) -> NDArray[np.intp]:
        """Rows by begin, longest first; without what damage made: negative durations, and times far from all others."""
        if not len(start_ns):
            return np.zeros(0, np.intp)
        middle = int(np.median(start_ns))
        sound = np.abs(start_ns.astype(np.float64) - middle) < LONGEST_NS
        sound &= (np.abs(start_ns) < LATEST_NS) & (duration_ns >= 0) & (duration_ns < LONGEST_NS)
        rows = np.flatnonzero(sound)
        lost = len(sound) - len(rows)
        if lost:
            self.notes.append(f"{lost:,} of {len(sound):,} events have impossible times and were left out.")
        return rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]


_EMPTY = np.zeros(0, dtype=np.int64)


def _shifted(steps: Steps | None, origin_ns: int) -> Steps:
    if steps is None:
        return Steps(number=_EMPTY, start_ns=_EMPTY, end_ns=_EMPTY)
    return Steps(
        number=steps.number,
        start_ns=steps.start_ns - origin_ns,
        end_ns=steps.end_ns - origin_ns,
        inferred=steps.inferred,
    )


def named(assembly: Assembly, texts: Sequence[str]) -> Int64s:
    """Indices of many names."""
    return np.fromiter((assembly.name(text) for text in texts), dtype=np.int64, count=len(texts))


def kinds_of(kinds: Sequence[Kind]) -> Int64s:
    """Kinds as a column."""
    return np.fromiter((int(kind) for kind in kinds), dtype=np.int64, count=len(kinds))
