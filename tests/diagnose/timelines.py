"""Timelines put together from a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearpeak.trace.timeline import Kind, Lane, Steps, Timeline

Row = tuple[Kind, int, int, str, int]
"""Kind, start, duration (ns), name, correlation."""

LANES = (Lane(process="1", thread="main"), Lane(process="device 0", thread="7", device=0),
         Lane(process="device 0", thread="9", device=0), Lane(process="1", thread="watchdog"))  # fmt: skip


def lane_of(kind: Kind) -> int:
    return 2 if kind == Kind.COMMUNICATION else 1 if kind <= Kind.DEVICE_SPAN else 0


def timeline(rows: Sequence[Row], steps: Sequence[tuple[int, int]], **more: Any) -> Timeline:
    """Communication runs on a stream of its own; calls, ranges and loaders on the main thread."""
    rows = sorted(rows, key=lambda row: (row[1], -row[2]))
    names = tuple(dict.fromkeys(row[3] for row in rows))
    column = lambda position: np.array([row[position] for row in rows], np.int64)  # noqa: E731
    values: dict[str, Any] = {
        "source": "made.json",
        "start_ns": column(1),
        "duration_ns": column(2),
        "kind": column(0).astype(np.uint8),
        "lane": np.array([lane_of(row[0]) for row in rows], np.int32),
        "name": np.array([names.index(row[3]) for row in rows], np.int32),
        "correlation": column(4),
        "n_bytes": np.full(len(rows), -1),
        "names": names,
        "lanes": LANES,
        "steps": Steps(
            number=np.arange(len(steps)),
            start_ns=np.array([start for start, _ in steps], np.int64),
            end_ns=np.array([end for _, end in steps], np.int64),
        ),
    }
    return Timeline(**{**values, **more})
