"""The probe for those who prefer a line in their code: `watching` around a loop, `watched` around its batches.

>>> with nearpeak.watching("nearpeak-runs/mine"):
...     for batch in loader:
...         train_on(batch)
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from nearpeak.errors import SettingError
from nearpeak.observe.folders import RUNS, default_folder
from nearpeak.observe.inject.sitecustomize import Hooks
from nearpeak.observe.probe import HOOKS, Probe, current, start

__all__ = ["watched", "watching"]

B = TypeVar("B")
_sources = itertools.count(-1, -1)


@contextmanager
def watching(folder: str | Path | None = None, *, force: bool = False) -> Iterator[Path]:
    """Record all training inside the block; gives the recording's folder, which `nearpeak report` reads.

    Ranks that train together share one folder, which must be named then. In a process that is watched already, by
    `nearpeak run` or by another block around this one, that recording goes on and nothing else is made.
    """
    torch = import_module("torch")  # first: in an attached process its import begins the recording
    running = current()
    if running is not None:
        yield Path(running.folder)
        return
    chosen = _choose(folder, force)
    probe = start(str(chosen), torch)
    finder = _hook_frameworks()
    outcome = "failed"
    try:
        yield chosen
        outcome = "finished"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        probe.stop()
        _end(chosen, outcome)


def watched(batches: Iterable[B], folder: str | Path | None = None, *, force: bool = False) -> Iterator[B]:
    """The same batches; the wait for each is the step's input. For sources other than torch's DataLoader, which is
    known by itself, or as the only line: without a block around it it records as long as the loop runs."""
    around = watching(folder, force=force) if current() is None else nullcontext()
    with around:
        iterator, number = iter(batches), next(_sources)
        while True:
            try:
                batch = _next(iterator, number)
            except StopIteration:
                return
            yield batch


def _next(iterator: Iterator[B], number: int) -> B:
    probe = current()
    if probe is None:
        return next(iterator)
    watch, guard = probe.watch, probe.boundary.guard
    before, seen = guard(watch.batch_wanted)(number), watch.batches
    try:
        batch = next(iterator)
    except BaseException:
        if before is not None:
            guard(watch.batch_refused)(before)
        raise
    if before is not None and watch.batches == seen:  # no loader of torch's stands behind it
        guard(_arrived)(probe, number, batch)
    return batch


def _arrived(probe: Probe, number: int, batch: object) -> None:
    probe.watch.batch_arrived(number, *probe.loaders.meter.measure(batch, probe.watch.steps))


def _choose(folder: str | Path | None, force: bool) -> Path:
    """The first rank makes the folder; the others find it there when they have trained a step together."""
    from nearpeak.recording.rows import RowWriter
    from nearpeak.recording.run_info import describe_run
    from nearpeak.recording.writer import clear_way, to_json

    if folder is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise SettingError("watching(): several ranks train together and need one folder; name it: watching(folder).")
    chosen = Path(folder) if folder is not None else default_folder(sys.argv or ["python"], Path(RUNS))
    if int(os.environ.get("RANK") or 0) == 0:
        clear_way(chosen, force=force)
        rows = RowWriter(chosen)
        rows.write_info("run", to_json(describe_run()))
        rows.close()
    return chosen.absolute()


def _end(folder: Path, outcome: str) -> None:
    from nearpeak.recording.rows import RowWriter
    from nearpeak.recording.run_info import Ending, now_text
    from nearpeak.recording.writer import to_json

    if int(os.environ.get("RANK") or 0) == 0:
        rows = RowWriter(folder, warn=False)
        rows.write_info("ending", to_json(Ending(now_text(), outcome, 0)))  # type: ignore[arg-type]
        rows.close()


def _hook_frameworks() -> Hooks:
    """Those that are imported, now; the others when they are."""
    others = {name: function for name, function in HOOKS.items() if name != "torch"}
    missing = {name: function for name, function in others.items() if name not in sys.modules}
    for name, function in others.items():
        if name not in missing and name != "torch._dynamo.callback":  # which the probe looks for itself
            home, _, called = function.partition(":")
            getattr(import_module(home), called)(sys.modules[name])
    finder = Hooks(missing)
    sys.meta_path.insert(0, finder)
    return finder
