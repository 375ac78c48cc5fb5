"""Chrome's format as TensorFlow and JAX write it (`*.trace.json.gz`), where the XPlane file itself is gone.

Events carry no category there. What they are, the names of their process and thread tell, which are those of an
XPlane's planes and lines. Correlation ids are not read: which call launched which kernel stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nearpeak.trace import xplane_names
from nearpeak.trace.steps import find_steps
from nearpeak.trace.timeline import Device, Kind, Lane, Steps, Timeline

__all__ = ["with_planes"]

PLANE = re.compile(r"^(/device:(?:CUSTOM:)?[^: ]+:\d+|/host:[\w-]+)")
"""At the begin of a process's name; its number follows."""


@dataclass(frozen=True, slots=True)
class _Role:
    """What the events of a lane are."""

    lane: Lane
    kind_of: Callable[[str], Kind] | None
    """None where they are no work, but drawn above it."""
    are_steps: bool = False


def with_planes(timeline: Timeline) -> Timeline:
    """The same where no process is a plane; else with devices, kinds and steps as their names tell."""
    if not any(PLANE.match(lane.process) for lane in timeline.lanes):
        return timeline
    roles = [_role(lane) for lane in timeline.lanes]
    kind, name, names = _kinds(timeline, roles)
    kept = np.flatnonzero(np.array([role.kind_of is not None for role in roles])[timeline.lane])
    devices = {role.lane.device for role in roles if role.lane.device is not None}
    found = replace(
        timeline,
        start_ns=timeline.start_ns[kept],
        duration_ns=timeline.duration_ns[kept],
        kind=kind[kept],
        lane=timeline.lane[kept],
        name=name[kept],
        correlation=timeline.correlation[kept],
        n_bytes=timeline.n_bytes[kept],
        names=names,
        lanes=tuple(role.lane for role in roles),
        devices=tuple(Device(index=index) for index in sorted(devices)),
        collectives=None,
    )
    steps = _steps(timeline, roles)
    return find_steps(found) if steps is None else replace(found, steps=steps)


def _role(lane: Lane) -> _Role:
    plane = PLANE.match(lane.process)
    device = xplane_names.device_of(plane[1]) if plane else None
    if device is None:
        return _Role(lane, lambda name: xplane_names.host_kind(name, is_call=False))
    device_type, index = device
    on_device = Lane(process=lane.process, thread=lane.thread, device=index)
    if xplane_names.is_step_line(lane.thread):
        return _Role(lane, None, are_steps=True)
    if xplane_names.is_derived_line(device_type, lane.thread):
        return _Role(lane, None)
    return _Role(on_device, xplane_names.gpu_kind if device_type == "GPU" else xplane_names.tpu_kind)


def _kinds(timeline: Timeline, roles: list[_Role]) -> tuple[NDArray[np.uint8], NDArray[np.int32], tuple[str, ...]]:
    """Kinds of all events, and their names, where copies are named as all readers name them."""
    numbers = {name: number for number, name in enumerate(timeline.names)}
    kind, renamed = timeline.kind.copy(), timeline.name.copy()
    for number, role in enumerate(roles):
        rows = np.flatnonzero(timeline.lane == number)
        for name in np.unique(timeline.name[rows]) if role.kind_of is not None else ():
            text, its = timeline.names[name], rows[timeline.name[rows] == name]
            kind[its] = _kind(role, text)
            if role.lane.device is not None and kind[its[0]] == Kind.COPY:
                renamed[its] = numbers.setdefault(xplane_names.copy_name(text, "")[0], len(numbers))
    return kind, renamed, tuple(numbers)


def _kind(role: _Role, text: str) -> Kind:
    return Kind.OTHER if role.kind_of is None else role.kind_of(text)


def _steps(timeline: Timeline, roles: list[_Role]) -> Steps | None:
    """Those that the device's own line tells; of several devices the first's."""
    lanes = [number for number, role in enumerate(roles) if role.are_steps]
    lane = next((number for number in lanes if (timeline.lane == number).any()), None)
    if lane is None:
        return None
    rows = np.flatnonzero((timeline.lane == lane) & (timeline.duration_ns > 0))
    start_ns, end_ns = timeline.start_ns[rows], timeline.end_ns[rows]
    texts = [timeline.names[name] for name in timeline.name[rows]]
    told = [int(text) if text.isdecimal() and len(text) < 19 else -1 for text in texts]
    end_ns[:-1] = np.minimum(end_ns[:-1], start_ns[1:])
    number = np.array(told, np.int64) if min(told, default=-1) >= 0 else np.arange(len(rows))
    kept = end_ns > start_ns
    return Steps(number=number[kept], start_ns=start_ns[kept], end_ns=end_ns[kept]) if kept.any() else None
