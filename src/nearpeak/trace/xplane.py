"""Reads XPlane files (`*.xplane.pb`), the traces of TensorFlow and JAX, into timelines.

One file is one host process with all its devices. Steps are the device's own where it has them (TPU), else the ranges
with a `step_num` that the training loop drew on the host, else none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError
from nearpeak.trace import xplane_names as names
from nearpeak.trace.assembly import Assembly, kinds_of
from nearpeak.trace.octets import octets_of
from nearpeak.trace.step_ranges import Ranges, steps_from_ranges
from nearpeak.trace.steps import with_some_steps
from nearpeak.trace.timeline import Device, Kind, Steps, Timeline
from nearpeak.trace.wire import Buffer, WireError
from nearpeak.trace.xspace import Line, Plane, planes_of

__all__ = ["is_xplane", "read_xplane"]

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
STATS = frozenset(("correlation_id", "memcpy_details", "step_num", "_r", "hlo_op"))
EARLIEST_EPOCH_NS = 10**17
"""1973: a trace whose clock shows less counts from the begin of its profile."""
CALLS_AS_STEPS = "no range carries a step number: each call of a compiled function from Python is taken as a step"

Int64s = NDArray[np.int64]


def is_xplane(path: Path) -> bool:
    """By its name: the format has no signature."""
    return path.name.endswith(SUFFIXES)


def read_xplane(path: Path) -> Timeline:
    """The timeline of one host."""
    with octets_of(path) as octets:
        buffer = Buffer(octets)
        planes, problems = planes_of(buffer)
        if not planes:
            raise DataError(f"{path}: is no XPlane file, or none of it is left: {' '.join(problems) or 'it is empty.'}")
        reading = _Reading(Assembly(str(path)))
        reading.assembly.notes += problems
        for plane in planes:
            try:
                reading.read(plane)
            except WireError as error:
                reading.assembly.notes.append(f"Plane {plane.name!r} is damaged: {error}")
        return reading.timeline()


@dataclass(slots=True)
class _Reading:
    """One file on its way into a timeline."""

    assembly: Assembly
    epoch_ns: int | None = None
    """Begin of the profile, where the file tells it."""
    device_steps: list[Steps] = field(default_factory=list)
    host_ranges: list[tuple[bool, str, Ranges]] = field(default_factory=list)
    """Whether they carry step numbers, the thread's name, and the ranges."""
    lines_seen: int = 0

    def read(self, plane: Plane) -> None:
        device = names.device_of(plane.name)
        if device is not None:
            self._read_device(plane, *device)
        elif names.is_host_plane(plane.name):
            for line in plane.lines(STATS):
                self._add_thread(plane, line)
        elif plane.name == "Task Environment":
            self.epoch_ns = plane.numbers().get("profile_start_time")

    def timeline(self) -> Timeline:
        """What was read, with the best steps there are."""
        steps = self.device_steps[0] if self.device_steps else self._host_steps()
        if not self.lines_seen:
            self.assembly.notes.append("No line of the file holds an event.")
        if not self.assembly.devices:
            self.assembly.notes.append("The file has no device's plane: only the host was traced.")
        timeline = with_some_steps(self.assembly.timeline(steps))
        if timeline.origin_ns < EARLIEST_EPOCH_NS and self.epoch_ns:
            timeline = replace(timeline, origin_ns=timeline.origin_ns + self.epoch_ns)
        return timeline

    # -- devices -------------------------------------------------------------------------------------------------------

    def _read_device(self, plane: Plane, device_type: str, index: int) -> None:
        self.assembly.devices.append(_device(plane, device_type, index))
        for line in plane.lines(STATS):
            if names.is_step_line(line.name) and device_type != "GPU":
                self._add_device_steps(plane, line)
            if len(line) and not names.is_derived_line(device_type, line.name):
                self._add_stream(plane, line, device_type, index)

    def _add_stream(self, plane: Plane, line: Line, device_type: str, index: int) -> None:
        self.lines_seen += 1
        kind_of = names.gpu_kind if device_type == "GPU" else names.tpu_kind
        ids, back = np.unique(line.metadata, return_inverse=True)
        texts = [plane.event_name(int(each)) for each in ids]
        kind = kinds_of([kind_of(text) for text in texts])[back]
        name = np.array([self.assembly.name(text) for text in texts], dtype=np.int64)[back]
        n_bytes = np.full(len(line), -1, dtype=np.int64)
        self._describe_copies(line, kind, texts, back, name, n_bytes)
        lane = np.full(len(line), self.assembly.lane(plane.name, line.name or str(line.id), index))
        lane[kind == Kind.INPUT] = self.assembly.lane(plane.name, f"infeed of {device_type} {index}")
        self.assembly.add(
            start_ns=line.start_ns,
            duration_ns=line.duration_ns,
            kind=kind,
            lane=lane,
            name=name,
            correlation=line.stats.numbers("correlation_id", len(line)),
            n_bytes=n_bytes,
        )

    def _describe_copies(
        self, line: Line, kind: Int64s, texts: list[str], back: Int64s, name: Int64s, n_bytes: Int64s
    ) -> None:
        """Give copies the name and size that their details tell."""
        details = line.stats.texts("memcpy_details")
        for row in np.flatnonzero(kind == Kind.COPY).tolist():
            shown, n_bytes[row] = names.copy_name(texts[back[row]], details.get(row, ""))
            name[row] = self.assembly.name(shown)

    def _add_device_steps(self, plane: Plane, line: Line) -> None:
        if not len(line):
            return
        order = np.argsort(line.start_ns, kind="stable")
        start_ns, end_ns = line.start_ns[order], (line.start_ns + line.duration_ns)[order]
        told = [plane.event_name(int(each)) for each in line.metadata[order]]
        numbers = np.array([int(text) if text.isdigit() and len(text) < 19 else -1 for text in told], dtype=np.int64)
        if (numbers < 0).any():
            numbers = np.arange(len(told), dtype=np.int64)
        end_ns[:-1] = np.minimum(end_ns[:-1], start_ns[1:])
        self.device_steps.append(Steps(number=numbers, start_ns=start_ns, end_ns=np.maximum(end_ns, start_ns)))

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _add_thread(self, plane: Plane, line: Line) -> None:
        if not len(line):
            return
        self.lines_seen += 1
        correlation = line.stats.numbers("correlation_id", len(line))
        ids, back = np.unique(line.metadata, return_inverse=True)
        texts = [plane.event_name(int(each)) for each in ids]
        called = np.bincount(back[correlation >= 0], minlength=len(ids)) > 0
        kinds = kinds_of([names.host_kind(text, bool(call)) for text, call in zip(texts, called, strict=True)])
        kinds = np.where(np.isin(np.arange(len(ids)), back[line.stats.having("hlo_op")]), int(Kind.OP), kinds)
        name = np.array([self.assembly.name(text) for text in texts], dtype=np.int64)
        self.assembly.add(
            start_ns=line.start_ns,
            duration_ns=line.duration_ns,
            kind=kinds[back],
            lane=self.assembly.lane(plane.name, line.name or str(line.id)),
            name=name[back],
            correlation=correlation,
        )
        self._note_ranges(line, texts, back)

    def _note_ranges(self, line: Line, texts: list[str], back: Int64s) -> None:
        """Ranges with a step number, which a training loop draws around its steps; or else calls from Python."""
        number = line.stats.numbers("step_num", len(line))
        told = bool((number >= 0).any())
        rows = np.flatnonzero(number >= 0 if told else line.stats.numbers("_r", len(line)) == 1)
        if len(rows):
            start_ns = line.start_ns[rows]
            ranges = Ranges(
                start_ns=start_ns,
                end_ns=start_ns + line.duration_ns[rows],
                thread=np.full(len(rows), self.lines_seen),
                name=back[rows],
                names=tuple(texts),
                number=number[rows] if told else np.arange(len(rows)),
            )
            self.host_ranges.append((told, line.name, ranges))

    def _host_steps(self) -> Steps | None:
        """Numbered ones before calls, the thread that runs Python before others, then the most time covered."""
        best: tuple[tuple[bool, bool, int], Steps] | None = None
        for told, thread, ranges in self.host_ranges:
            steps = steps_from_ranges(ranges)
            if steps is None or not (told or thread.startswith("python")):
                continue
            merit = (told, thread.startswith("python"), int((steps.end_ns - steps.start_ns).sum()))
            if best is None or merit > best[0]:
                best = (merit, steps if told else replace(steps, inferred=CALLS_AS_STEPS))
        return best[1] if best else None


def _device(plane: Plane, device_type: str, index: int) -> Device:
    """What the plane tells of its device; sizes are in bytes, clocks are left out."""
    numbers, texts = plane.numbers(), plane.texts()
    major, minor = numbers.get("compute_cap_major"), numbers.get("compute_cap_minor")
    told = texts.get("device_type_string") or texts.get("gpu_device_name") or None
    return Device(
        index=index,
        name=told if told is not None or device_type == "GPU" else device_type,
        memory_bytes=numbers.get("memory_size"),
        compute_capability=(major, minor) if major is not None and minor is not None else None,
        multiprocessors=numbers.get("core_count"),
    )
