"""Reads a machine, or a recording of one, and keeps what the view needs. One object for one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from nearpeak.errors import DataError
from nearpeak.finding import Finding
from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.live.sampler import DeviceSampler, Snapshot
from nearpeak.hardware.reading import Device, Reading
from nearpeak.report.watch.history import History
from nearpeak.report.watch.runs import RunFinder
from nearpeak.report.watch.screen import RunLine

__all__ = ["LiveWatcher", "ReplayWatcher", "Watcher", "findings_of"]

FINDINGS_EVERY_S = 15.0
FINDINGS_AFTER = 5
"""Readings before anything is said: one moment is no evidence."""
RUNS_EVERY_S = 2.0
LOOK_EVERY_S = 20.0


class Watcher(Protocol):
    """What the view follows."""

    history: History
    findings: Sequence[Finding]
    runs: Sequence[RunLine]

    def open(self) -> None: ...
    def tick(self) -> Snapshot | None: ...
    def close(self) -> None: ...


def findings_of(history: History, devices: Sequence[Device], source: str) -> list[Finding]:
    """What the last minute says is wrong."""
    from nearpeak.diagnose.facts import Facts
    from nearpeak.diagnose.reduce_readings import host_facts, reduce_readings
    from nearpeak.diagnose.rules import findings

    reduced = reduce_readings(history.readings, devices, source=source)
    return findings(Facts(source=source, devices=reduced, host=host_facts(history.host)))


class LiveWatcher:
    """This machine."""

    def __init__(self, sampler: DeviceSampler | None = None, runs: RunFinder | None = None) -> None:
        self._sampler = sampler or DeviceSampler()
        self._finder = runs or RunFinder()
        self.history = History()
        self.findings: Sequence[Finding] = ()
        self.runs: Sequence[RunLine] = ()
        self._ticks = 0
        self._judged_s = self._runs_s = self._looked_s = float("-inf")

    def open(self) -> None:
        """Find the devices; it may take seconds where a driver has to wake them."""
        self._sampler.open()

    def tick(self) -> Snapshot:
        """Read everything once; judge, and look at runs, when it is time."""
        return self._take(self._sampler.read())

    def once(self) -> Snapshot:
        """One look, slow questions included."""
        snapshot = self._take(self._sampler.read_once())
        self.findings = findings_of(self.history, snapshot.devices, "one look")
        self._look_at_runs()
        return snapshot

    def close(self) -> None:
        """Leave the drivers."""
        self._sampler.close()

    def _take(self, snapshot: Snapshot) -> Snapshot:
        self.history.add(snapshot)
        self._ticks += 1
        now_s = time.monotonic()
        if self._ticks >= FINDINGS_AFTER and now_s - self._judged_s >= FINDINGS_EVERY_S:
            self._judged_s = now_s
            self.findings = findings_of(self.history, snapshot.devices, "the last minute")
        if now_s - self._runs_s >= RUNS_EVERY_S and self._ticks > 1:
            self._runs_s = now_s
            self._look_at_runs()
        return snapshot

    def _look_at_runs(self) -> None:
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._finder.look()
        self.runs = self._finder.lines()


class ReplayWatcher:
    """A recording, or a log that another tool kept, moment by moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = History()
        self.findings: Sequence[Finding] = ()
        self.runs: Sequence[RunLine] = ()
        self._moments = list(_moments(path))
        if not self._moments:
            raise DataError(f"{path}: holds no readings of devices.")
        self._place = 0
        self._judged_ns = 0

    def open(self) -> None:
        """Everything was read already."""

    @property
    def count(self) -> int:
        return len(self._moments)

    def tick(self) -> Snapshot | None:
        """The next moment; None after the last."""
        if self._place >= len(self._moments):
            return None
        snapshot = self._moments[self._place]
        self._place += 1
        self.history.add(snapshot)
        if abs(snapshot.at_ns - self._judged_ns) >= FINDINGS_EVERY_S * 1e9 or self._place == len(self._moments):
            self._judged_ns = snapshot.at_ns
            self.findings = findings_of(self.history, snapshot.devices, self.path.name)
        return snapshot

    def move(self, readings: int) -> None:
        """Go on, or back, by so many moments; what was shown before is shown again."""
        place = min(max(0, self._place + readings - 1), len(self._moments) - 1)
        self.history = History()
        for snapshot in self._moments[max(0, place - 60) : place]:
            self.history.add(snapshot)
        self._place, self._judged_ns = place, 0

    def finish(self) -> Snapshot:
        """The last moment, with all before it seen."""
        snapshot = None
        while (following := self.tick()) is not None:
            snapshot = following
        return snapshot or self._moments[-1]

    def close(self) -> None:
        """Nothing is held."""


def _moments(path: Path) -> Iterator[Snapshot]:
    """Readings that were taken together, as snapshots in time."""
    readings, devices, hosts = _load(path)
    known = {device.key: device for device in devices}
    latest: dict[str, Reading] = {}
    ordered = iter(sorted(hosts, key=lambda host: host.at_ns))
    host, following = HostReading(at_ns=0), next(ordered, None)
    at_ns = 0
    for reading in [*readings, None]:
        if reading is None or (reading.key in latest and latest[reading.key].at_ns >= at_ns):
            while following is not None and following.at_ns <= at_ns + 10**9:
                host, following = following, next(ordered, None)
            if latest:
                yield _snapshot(latest, known, host, at_ns)
            at_ns = 0 if reading is None else reading.at_ns
        if reading is not None:
            at_ns = at_ns or reading.at_ns
            latest[reading.key] = _with_processes(reading, latest.get(reading.key))


def _with_processes(reading: Reading, before: Reading | None) -> Reading:
    """A recording keeps lists of processes more rarely than the rest."""
    from dataclasses import replace

    if reading.processes is None and before is not None and before.processes is not None and reading.state == "ok":
        return replace(reading, processes=before.processes)
    return reading


def _snapshot(latest: dict[str, Reading], known: dict[str, Device], host: HostReading, at_ns: int) -> Snapshot:
    ordered = sorted(latest.values(), key=lambda reading: (reading.device, -1 if reading.mig is None else reading.mig))
    devices = [known.get(each.key) or Device(index=each.device, mig=each.mig) for each in ordered]
    return Snapshot(at_ns=at_ns, host=host, devices=tuple(devices), readings=tuple(ordered), sources=())


def _load(path: Path) -> tuple[list[Reading], list[Device], list[HostReading]]:
    from nearpeak.hardware.reading_store import load_devices, load_host, load_readings
    from nearpeak.recording import Recording

    folder = path.parent if path.suffix == ".sqlite" else path
    if folder.is_dir():
        recording = Recording(folder)
        return list(load_readings(recording)), load_devices(recording), list(load_host(recording))
    from nearpeak.hardware.logs.log import read_log

    log = read_log(path)
    return list(log.readings), list(log.devices), []
