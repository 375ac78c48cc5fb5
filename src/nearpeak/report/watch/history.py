"""The last minutes of a machine, as much of them as a view shows and findings need."""

from __future__ import annotations

from collections import deque

from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.live.sampler import Snapshot
from nearpeak.hardware.reading import Reading

__all__ = ["History", "main_percent"]

KEPT_S = 60.0
"""Of whole readings, at one a second: findings judge the last minute."""
KEPT_POINTS = 240
"""Of the few figures that are drawn."""
NS = 10**9


class History:
    """What came, newest last. Its size does not depend on how fast it comes, nor for how long."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self._readings: dict[str, deque[Reading]] = {}
        self._host: deque[HostReading] = deque(maxlen=int(KEPT_S))
        self._points: dict[str, deque[float | None]] = {}
        self._kept_ns: dict[str, int] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Take a snapshot."""
        self.latest = snapshot
        for reading in snapshot.readings:
            self._points.setdefault(reading.key, deque(maxlen=KEPT_POINTS)).append(main_percent(reading))
            if self._is_due(reading.key, reading.at_ns):
                self._readings.setdefault(reading.key, deque(maxlen=int(KEPT_S))).append(reading)
        self._points.setdefault("host", deque(maxlen=KEPT_POINTS)).append(snapshot.host.cpu_percent)
        if self._is_due("host", snapshot.host.at_ns):
            self._host.append(snapshot.host)
        self._forget({reading.key for reading in snapshot.readings})

    def points(self, key: str, count: int) -> list[float | None]:
        """The last `count` values of the figure that is drawn of a device, or of the `host`."""
        kept = self._points.get(key)
        return [] if kept is None or count <= 0 else list(kept)[-count:]

    @property
    def readings(self) -> list[Reading]:
        """Of the last minute, one a second and device."""
        return [reading for kept in self._readings.values() for reading in kept]

    @property
    def host(self) -> list[HostReading]:
        """Of the last minute, one a second."""
        return list(self._host)

    def _is_due(self, key: str, at_ns: int) -> bool:
        if at_ns - self._kept_ns.get(key, 0) < 0.9 * NS:
            return False
        self._kept_ns[key] = at_ns
        return True

    def _forget(self, present: set[str]) -> None:
        """MIG instances come and go."""
        for key in self._readings.keys() - present:
            del self._readings[key], self._points[key], self._kept_ns[key]


def main_percent(reading: Reading) -> float | None:
    """How much of a device works where it tells, else whether any of it does."""
    return reading.busy_percent if reading.sm_busy_percent is None else reading.sm_busy_percent
