"""Loader workers report themselves: how long each batch took, on the clock and on the CPU, and where they were."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import threading
import time
from typing import Any

from nearpeak.observe.boundary import Boundary
from nearpeak.observe.patches import Patches
from nearpeak.observe.stacks import Places, read_stack
from nearpeak.recording.rows import RowWriter
from nearpeak.recording.schema import WorkerRecord

__all__ = ["WorkerHooks"]

SAMPLE_S = 0.1
"""Ten looks a second at each worker: there are many, and what they do repeats."""
FLUSH_S = 0.5


class WorkerHooks:
    """In every process: where torch starts a worker, the worker reports; nothing happens anywhere else."""

    def __init__(self, folder: str, boundary: Boundary, patches: Patches) -> None:
        self._folder, self._boundary, self._patches = folder, boundary, patches
        self.report: WorkerReport | None = None

    def install(self, dataloader: Any) -> None:
        """`dataloader` is torch.utils.data.dataloader."""
        self._hook_loop(dataloader._utils.worker)
        fetchers = dataloader._utils.fetch
        for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
            self._hook_fetch(fetcher)

    def _hook_loop(self, module: Any) -> None:
        original = module._worker_loop

        def loop(*args: Any, **kwargs: Any) -> None:
            self._begin()
            try:
                original(*args, **kwargs)
            finally:
                self._end()

        # Takes the name of torch's function: spawned workers find it by that name, with or without us.
        self._patches.put(module, "_worker_loop", loop)

    def _begin(self) -> None:
        self._boundary.active = False  # what datasets do here is no part of a step
        try:
            self.report = WorkerReport(self._folder, os.getppid())
            self.report.start()
        except Exception as error:  # noqa: BLE001  the one boundary
            self._boundary.broke(error)

    def _end(self) -> None:
        if self.report is not None:
            self.report.stop()

    def _hook_fetch(self, kind: Any) -> None:
        original = kind.fetch

        def fetch(fetcher: Any, index: Any) -> Any:
            report = self.report
            if report is None:
                return original(fetcher, index)
            began_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            data = original(fetcher, index)
            report.fetched(time.perf_counter_ns() - began_ns, time.thread_time_ns() - cpu_ns)
            return data

        self._patches.put(kind, "fetch", fetch)


class WorkerReport:
    """One worker's side: counts in its main thread, samples and writes in one of its own."""

    def __init__(self, folder: str, parent: int) -> None:
        self._folder, self._parent, self._pid = folder, parent, os.getpid()
        self._ident = threading.get_ident()
        self._began_ns = time.perf_counter_ns()
        self._batches = self._fetch_ns = self._cpu_ns = 0
        self._first_ns: int | None = None
        self._fetching = False
        self._places = Places()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearpeak-worker", daemon=True)

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write the rest."""
        self._stop.set()
        self._thread.join(1.0)

    def fetched(self, spent_ns: int, cpu_ns: int) -> None:
        """One batch is ready."""
        if self._first_ns is None:
            self._first_ns = time.perf_counter_ns() - self._began_ns
        self._batches += 1
        self._fetch_ns += spent_ns
        self._cpu_ns += cpu_ns

    def _run(self) -> None:
        rows: RowWriter | None = None
        next_flush = time.monotonic() + FLUSH_S
        while not self._stop.wait(SAMPLE_S):
            frame = sys._current_frames().get(self._ident)
            if frame is not None:
                self._places.add("worker", read_stack(frame))
            if time.monotonic() >= next_flush:
                rows = self._flush(rows)
                next_flush = time.monotonic() + FLUSH_S
        rows = self._flush(rows)
        if rows is not None:
            rows.close()

    def _flush(self, rows: RowWriter | None) -> RowWriter | None:
        """Only once the training process has a number: a loader that nobody trains with leaves nothing."""
        try:
            rows = rows or self._open()
        except sqlite3.Error:  # the training process meets the same disk, and tells of it
            return None
        number = None if rows is None else rows.number_of(self._parent, socket.gethostname())
        if rows is None or number is None or not self._batches:
            return rows
        first = self._first_ns
        rows.write(
            [
                WorkerRecord(
                    process=number,
                    pid=self._pid,
                    batches=self._batches,
                    fetch_ms=self._fetch_ns * 1e-6,
                    fetch_cpu_ms=self._cpu_ns * 1e-6,
                    first_batch_ms=None if first is None else first * 1e-6,
                )
            ]
        )
        rows.count_places(self._places.take(number))
        return rows

    def _open(self) -> RowWriter | None:
        if not os.path.isdir(self._folder):
            return None
        return RowWriter(self._folder, warn=False)
