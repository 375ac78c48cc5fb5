"""The probe's own thread: samples where the training thread is, and writes what the hooks counted, in batches.

It holds the only connection to the recording's database, in its own frame: a process that is forked while it runs
inherits nothing that it could close. Memory is bounded on both sides; a disk that refuses costs rows, nothing else.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nearpeak.observe.boundary import Boundary
from nearpeak.observe.phases import NAMES
from nearpeak.observe.stacks import Places, read_stack
from nearpeak.observe.steps import Occurrence, StepWatch
from nearpeak.observe.system import CpuAndReads
from nearpeak.observe.tally import Tally, to_row
from nearpeak.recording.rows import RowWriter
from nearpeak.recording.schema import EventRecord, ProcessRecord

__all__ = ["Recorder", "Sites"]

SAMPLE_S = 0.1
"""Ten looks a second: enough to find what takes a tenth of a minute, and too few to be felt: each costs the training a
tenth of a millisecond, taken together with what it pushes out of the caches."""
FIRST_LOOKS_S = 0.04
"""Until the process has its number: workers wait for it, and some do not live long."""
FLUSH_S = 1.0
"""The most that a kill -9 can take, and seldom enough for any disk; each takes a millisecond of the interpreter."""
MOST_ROWS = 20_000
"""Steps that wait for a process number, or for a disk that answers."""
UNIX_OFFSET_NS = time.time_ns() - time.perf_counter_ns()


class Sites(Protocol):
    """Where values were read from tensors; handed over once a flush."""

    sites: dict[Any, Any]


@dataclass(slots=True)
class Sources:
    """What the thread looks at."""

    watch: StepWatch
    boundary: Boundary
    sites: Sites
    worker_pids: Callable[[], list[int]]
    process: Callable[[], ProcessRecord]
    """As it is now; its number is only wished for."""


class Recorder:
    """Runs from the first sign of training to the end of the process."""

    def __init__(self, folder: str, sources: Sources) -> None:
        self._folder, self._from = folder, sources
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearpeak-recorder", daemon=True)
        self._places = Places()
        self._system = CpuAndReads()
        self._number: int | None = None
        self._written: ProcessRecord | None = None
        self._lost = 0
        self._told = False

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def stop(self, patience_s: float = 2.0) -> None:
        """Write the rest; a disk that hangs is not waited for longer than that."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  the one boundary: this thread is ours, the process is not
            self._from.boundary.broke(error)
            self._try_to_tell()

    def _work(self) -> None:
        rows: RowWriter | None = None
        next_flush = time.monotonic() + FLUSH_S
        while not self._stop.wait(SAMPLE_S if self._number is not None else FIRST_LOOKS_S):
            self._sample()
            unnamed = self._number is None and self._from.watch.closed
            if unnamed or time.monotonic() >= next_flush:
                rows = self._flush(rows)
                next_flush = time.monotonic() + FLUSH_S
        rows = self._flush(rows, last=True)
        if rows is not None:
            rows.close()

    def _sample(self) -> None:
        boundary, watch = self._from.boundary, self._from.watch
        if not boundary.active:
            return
        phase = watch.clock.current
        frame = sys._current_frames().get(boundary.thread or 0)
        if frame is not None:
            self._places.add(NAMES[phase], read_stack(frame))

    # Writing

    def _flush(self, rows: RowWriter | None, *, last: bool = False) -> RowWriter | None:
        watch = self._from.watch
        if last and watch.device is not None:
            watch.closed.extend(watch.device.rest())
        steps = self._take(watch.closed)
        broken = last and self._from.boundary.fault is not None
        if self._number is None and not steps and not broken:
            return rows  # nothing was trained: nothing is written, and nothing is made
        rows = rows or self._open()
        if rows is None:
            self._lost += len(steps)
            return None
        if self._enter(rows, last) is None:
            self._lost += len(steps)
            self._tell_of(rows.fault)
            return rows
        self._write(rows, steps, last)
        return rows

    def _write(self, rows: RowWriter, steps: list[Tally], last: bool) -> None:
        number = self._number or 0
        occurrences = self._take(self._from.watch.occurrences)
        rows.write([*self._step_rows(steps, number), *_event_rows(occurrences, number)])
        self._take_sites()
        rows.count_places(self._places.take(number))
        self._tell_of(rows.fault)
        self._enter(rows, last)

    def _step_rows(self, steps: list[Tally], number: int) -> Iterable[Any]:
        worker_cpu_ms, read_bytes = self._system.look(os.getpid(), self._from.worker_pids())
        share = len(steps) or 1
        for each in steps:
            each.ended_ns += UNIX_OFFSET_NS
            yield to_row(
                each,
                number,
                read_bytes=None if read_bytes is None else read_bytes // share,
                worker_cpu_ms=None if worker_cpu_ms is None else worker_cpu_ms / share,
            )

    def _take_sites(self) -> None:
        sites, self._from.sites.sites = self._from.sites.sites, {}
        for site in list(sites.values()):
            self._places.add("sync", site.stack, site.reads, site.spent_ns * 1e-6)

    def _enter(self, rows: RowWriter, last: bool) -> int | None:
        """Enter the process under its number, and again whenever more is known of it."""
        lost = self._lost + rows.lost_steps + self._from.watch.lost
        now = replace(self._from.process(), fault=self._from.boundary.fault, lost_steps=lost)
        now = replace(now, ended_ns=time.time_ns() if last else None)
        if self._number is None:
            self._number = rows.claim(now)
            self._written = now
        elif now != self._written:
            rows.write([replace(now, process=self._number)])
            self._written = now
        return self._number

    def _open(self) -> RowWriter | None:
        try:
            return RowWriter(self._folder, warn=False)
        except sqlite3.Error as error:
            self._tell_of(str(error))
            return None

    def _take(self, queue: Any) -> list[Any]:
        """All that is there now; the training thread goes on adding."""
        return [queue.popleft() for _ in range(min(len(queue), MOST_ROWS))]

    # When something fails

    def _tell_of(self, fault: str | None) -> None:
        if fault is not None and not self._told:
            self._told = True
            print(  # noqa: T201  once, and there is nobody else to tell
                f"nearpeak: {self._folder}: {fault}. Training goes on; steps are missing from the recording.",
                file=sys.stderr,
            )

    def _try_to_tell(self) -> None:
        try:
            rows = self._open()
            if rows is not None:
                self._enter(rows, last=False)
                rows.close()
        except Exception:  # noqa: BLE001  the fault is told where it can be; the training goes on
            pass


def _event_rows(occurrences: list[Occurrence], number: int) -> Iterable[EventRecord]:
    for each in occurrences:
        yield EventRecord(
            process=number,
            at_ns=each.began_ns + UNIX_OFFSET_NS,
            kind=each.kind,
            step=each.step,
            duration_ms=None if each.duration_ns is None else each.duration_ns * 1e-6,
            detail=json.dumps(each.detail, default=str),
        )
