"""Writes small XPlane files, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from wire_writer import Value, message


@dataclass
class Event:
    name: str
    start_ns: int
    duration_ns: int
    stats: dict[str, int | str | float] = field(default_factory=dict)


@dataclass
class PlaneWriter:
    """One plane: names and stat names are numbered as they come."""

    name: str
    lines: dict[str, list[Event]] = field(default_factory=dict)
    stats: dict[str, int | str | float] = field(default_factory=dict)
    begin_ns: int = 1_700_000_000_000_000_000
    _names: dict[str, int] = field(default_factory=dict)
    _stat_names: dict[str, int] = field(default_factory=dict)

    def encoded(self) -> bytes:
        lines = [self._line(number, name, events) for number, (name, events) in enumerate(self.lines.items(), 1)]
        own: list[Value] = [self._stat(name, value) for name, value in self.stats.items()]
        names: list[Value] = [self._entry(key, {1: key, 2: name}) for name, key in self._names.items()]
        stat_names: list[Value] = [self._entry(key, {1: key, 2: name}) for name, key in self._stat_names.items()]
        return message({1: 7, 2: self.name, 3: [*lines], 4: names, 5: stat_names, 6: own})

    def _line(self, number: int, name: str, events: list[Event]) -> bytes:
        encoded: list[Value] = [self._event(event) for event in events]
        return message({1: number, 2: name, 3: self.begin_ns, 4: encoded, 9: 10**9})

    def _event(self, event: Event) -> bytes:
        key = self._names.setdefault(event.name, len(self._names) + 1)
        stats: list[Value] = [self._stat(name, value) for name, value in event.stats.items()]
        offset_ps = (event.start_ns - self.begin_ns) * 1000
        return message({1: key, 2: offset_ps, 3: event.duration_ns * 1000, 4: stats})

    def _stat(self, name: str, value: int | str | float) -> bytes:
        key = self._stat_names.setdefault(name, len(self._stat_names) + 1)
        number = {int: 4, float: 2, str: 5}[type(value)]
        return message({1: key, number: value})

    def _entry(self, key: int, fields: dict[int, Value]) -> bytes:
        return message({1: key, 2: message(fields)})


def space(*planes: PlaneWriter) -> bytes:
    """The content of an `*.xplane.pb` file."""
    return message({1: [plane.encoded() for plane in planes]})


def training_space(steps: int = 4, *, device_type: str = "GPU") -> bytes:
    """A training loop: 10 ms steps, each 4 ms waiting for input, then a launch, a copy and 5 ms of work."""
    host = PlaneWriter("/host:CPU")
    device = PlaneWriter(f"/device:{device_type}:0", stats={"compute_cap_major": 9, "compute_cap_minor": 0})
    for step in range(steps):
        begin = host.begin_ns + step * 10_000_000
        call = {"correlation_id": step + 1}
        host.lines.setdefault("python", []).extend(
            (
                Event("train", begin, 9_900_000, {"step_num": step, "_r": 1}),
                Event("IteratorGetNext", begin + 100_000, 4_000_000),
                Event("cuLaunchKernel", begin + 4_200_000, 10_000, call),
                Event("cuMemcpyHtoDAsync", begin + 4_150_000, 10_000, {"correlation_id": 100 + step}),
            )
        )
        details = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
        device.lines.setdefault("Stream #1(compute)", []).append(Event("gemm", begin + 4_300_000, 5_000_000, call))
        device.lines.setdefault("Stream #2(memcpy)", []).append(
            Event("MemcpyH2D", begin + 4_170_000, 100_000, {"correlation_id": 100 + step, "memcpy_details": details})
        )
        device.lines.setdefault("XLA Ops", []).append(Event("fusion.1", begin + 4_300_000, 5_000_000))
    return space(host, device, PlaneWriter("Task Environment", stats={"profile_start_time": 5}))
