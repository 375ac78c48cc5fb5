"""The causes of every instant as tracks for Perfetto: one track a device, one span a cause without a break."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearpeak.diagnose.attribution import Attribution, attribute
from nearpeak.diagnose.breakdown import IDLE_CAUSES
from nearpeak.diagnose.intervals import Spans
from nearpeak.trace.perfetto import Track
from nearpeak.trace.timeline import Timeline

__all__ = ["cause_tracks"]


def cause_tracks(timelines: Sequence[Timeline], *, own_clock: bool) -> list[Track]:
    """Of all devices of all timelines. With `own_clock` times are those in the file, else those since the epoch."""
    tracks: list[Track] = []
    for position, timeline in enumerate(timelines):
        rank = position if timeline.rank is None else timeline.rank
        for device in timeline.busy_devices() or (None,):
            name = "host" if device is None else f"device {device}"
            shift_ns = timeline.origin_ns - (timeline.epoch_ns if own_clock else 0)
            group = f"nearpeak: where the time of rank {rank} goes"
            tracks += [_causes(group, name, attribute(timeline, device), shift_ns), _steps(group, timeline, shift_ns)]
    return tracks


def _causes(group: str, name: str, attribution: Attribution, shift_ns: int) -> Track:
    sets = {"compute": attribution.compute, "exposed communication": attribution.communication}
    sets |= {f"exposed copy {route}": spans for route, spans in attribution.copies.items()}
    sets |= {f"idle: {cause} ({IDLE_CAUSES[cause]})": spans for cause, spans in attribution.idle.items()}
    return _track(group, f"{name}: causes", sets, shift_ns)


def _steps(group: str, timeline: Timeline, shift_ns: int) -> Track:
    steps = timeline.steps
    sets = {
        f"step {number}": Spans(np.array([start]), np.array([end]))
        for number, start, end in zip(
            steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True
        )
    }
    return _track(group, "steps", sets, shift_ns)


def _track(group: str, name: str, sets: dict[str, Spans], shift_ns: int) -> Track:
    """All sets in one row, by time; they do not overlap."""
    start_ns = np.concatenate([np.zeros(0, np.int64), *(spans.start for spans in sets.values())])
    end_ns = np.concatenate([np.zeros(0, np.int64), *(spans.end for spans in sets.values())])
    label = np.repeat(np.arange(len(sets)), [len(spans.start) for spans in sets.values()])
    order = np.argsort(start_ns, kind="stable")
    return Track(
        group=group,
        name=name,
        start_ns=start_ns[order] + shift_ns,
        duration_ns=(end_ns - start_ns)[order],
        label=label[order],
        labels=tuple(sets),
    )
