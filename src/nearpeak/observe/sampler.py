"""`Sampler`: readings of the machine while a run goes on, from a thread of whoever watches it from outside."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from nearpeak.recording.rows import RowWriter
from nearpeak.recording.schema import ReadingRecord

__all__ = ["Sampler"]

Read = Callable[[], Sequence[ReadingRecord]]

EVERY_S = 1.0
"""Often enough for shares of minutes; drivers average over about as long."""
FLUSH_READINGS = 5


class Sampler:
    """Asks a reader once in a while and writes what it answers; the reader is opened and closed by the same thread."""

    def __init__(self, folder: Path, reader: AbstractContextManager[Read], *, every_s: float = EVERY_S) -> None:
        self._folder, self._reader, self._every_s = folder, reader, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearpeak-sampler", daemon=True)

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write the rest; a driver that hangs is not waited for longer than it is worth."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        try:
            rows = RowWriter(self._folder)
        except sqlite3.Error:  # whoever opened the folder before has said so
            return
        with self._reader as read:
            self._write_until_stopped(rows, read)
        rows.close()

    def _write_until_stopped(self, rows: RowWriter, read: Read) -> None:
        held: list[ReadingRecord] = []
        while not self._stop.wait(self._every_s):
            held += read()
            if len(held) >= FLUSH_READINGS:
                rows.write(held)
                held = []
        rows.write([*held, *read()])
