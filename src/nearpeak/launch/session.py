"""`Session`: the side of `nearpeak run`: a folder for the run, readings of the machine meanwhile, how it ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nearpeak.errors import SettingError
from nearpeak.launch.machine import MachineReader
from nearpeak.observe.attach import attached_environment, read_records
from nearpeak.observe.folders import RUNS, default_folder
from nearpeak.observe.probe import HOOKS
from nearpeak.observe.sampler import Sampler
from nearpeak.recording.reader import Recording
from nearpeak.recording.rows import DATABASE, RowWriter
from nearpeak.recording.run_info import Ending, Outcome, describe_run, now_text
from nearpeak.recording.writer import clear_way, to_json

__all__ = ["Session"]

APPLIED = "applied"
"""Folder of what each process of the command left behind."""
INTERRUPTS = (130, 143)
"""Exit codes of what SIGINT and SIGTERM ended, as shells say it."""


class Session:
    """One command that is watched: a context manager around its life."""

    def __init__(self, command: Sequence[str], folder: Path | None = None, *, force: bool = False) -> None:
        self._chosen = folder is not None
        self.folder = (folder or default_folder(command, Path(RUNS))).absolute()
        self._command = tuple(command)
        self._force = force
        self._rows: RowWriter | None = None
        self._sampler: Sampler | None = None

    def environment(
        self, hooks: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """In which every Python process of the command is watched; `hooks` come first where both want a module."""
        wanted: dict[str, list[str]] = {name: [function] for name, function in (hooks or {}).items()}
        for name, function in HOOKS.items():
            wanted.setdefault(name, []).append(function)
        chosen = {**(options or {}), "recording": str(self.folder)}
        records = self.folder / APPLIED
        if hooks:
            records.mkdir(exist_ok=True)
        return attached_environment(wanted, records=records, options=chosen)

    def applied(self) -> list[dict[str, Any]]:
        """What the hooks left behind, by rank."""
        return [record for record in read_records(self.folder / APPLIED) if record["kind"] == "applied"]

    def faults(self) -> list[str]:
        """What broke, a sentence each; once, however many processes it broke in."""
        if not self.trained:
            return []
        processes = Recording(self.folder).processes
        broken = sorted({process.fault for process in processes if process.fault})
        told = "the probe broke and left the training alone; steps after that are missing"
        sentences = [f"{told}: {fault}" for fault in broken]
        if lost := sum(process.lost_steps for process in processes):
            sentences.append(f"{lost:,} steps are missing from the recording: the disk refused them.")
        return sentences

    def __enter__(self) -> Self:
        try:
            clear_way(self.folder, force=self._force)
            self._rows = RowWriter(self.folder)
        except (sqlite3.Error, OSError) as error:
            raise SettingError(
                f"{self.folder}: cannot hold a recording: {error}. Choose another with --output."
            ) from None
        self._rows.write_info("run", to_json(describe_run(command=self._command)))
        self._sampler = Sampler(self.folder, MachineReader())
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rows is not None:
            self.end("interrupted", None)

    def end(self, outcome: Outcome | None, exit_code: int | None) -> None:
        """The command is over."""
        if self._rows is None:
            return
        if self._sampler is not None:
            self._sampler.stop()
        lost = sum(process.lost_steps for process in Recording(self.folder).processes)
        outcome = outcome or _outcome(exit_code)
        self._rows.write_info("ending", to_json(Ending(now_text(), outcome, lost, exit_code)))
        self._rows.close()
        self._rows = None
        if not self._chosen and not self.trained:
            self._remove()

    @property
    def trained(self) -> bool:
        """Some process of the command made steps."""
        return (self.folder / DATABASE).exists() and bool(Recording(self.folder).processes)

    def _remove(self) -> None:
        """A command that trained nothing leaves no folder that nobody asked for."""
        for path in self.folder.glob(f"{DATABASE}*"):
            path.unlink(missing_ok=True)
        for path in (self.folder / APPLIED).glob("*.json"):
            path.unlink()
        for folder in (self.folder / APPLIED, self.folder, self.folder.parent):
            try:
                folder.rmdir()
            except OSError:  # not there, or something else stands in it
                continue


def _outcome(exit_code: int | None) -> Outcome:
    if exit_code == 0:
        return "finished"
    return "interrupted" if exit_code in INTERRUPTS else "failed"
