"""Runs every reader over damaged traces: nothing but nearpeak's own errors may come out, soon, and in little memory."""

from __future__ import annotations

import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mutations import mutated, mutated_export, small_kineto
from nsys_writer import write_export
from xplane_writer import training_space
from xprof_writer import write_run

from nearpeak.errors import NearpeakError

Reader = Callable[[Path], object]


@dataclass
class Outcome:
    """Of many damaged traces."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""
    grown_bytes: int = 0

    @property
    def total(self) -> int:
        return self.read.total() + self.refused.total() + len(self.crashes)


@dataclass(frozen=True)
class Case:
    """A small sound trace, how to damage it, and who reads it."""

    format: str
    name: str
    content: bytes
    read: Reader
    damage: Callable[[Path, bytes, random.Random], None]


def bytes_damaged(textual: bool) -> Callable[[Path, bytes, random.Random], None]:
    def damage(path: Path, content: bytes, rng: random.Random) -> None:
        path.write_bytes(mutated(content, rng, textual=textual))

    return damage


def export_damaged(path: Path, content: bytes, rng: random.Random) -> None:
    path.write_bytes(content)
    mutated_export(path, rng)


def cases(folder: Path, through: Callable[[Path], object]) -> Iterator[Case]:
    """One of each format; `through` reads a path, whatever it holds."""
    export = write_export(folder / "seed.sqlite").read_bytes()
    yield Case("nsys", "t.sqlite", export, through, export_damaged)
    yield Case("xplane", "t.xplane.pb", training_space(2), through, bytes_damaged(False))
    yield Case("kineto", "t.json", small_kineto(), through, bytes_damaged(True))
    for path in write_run(folder, compute=1.0, wait_input=2.0):
        yield Case("xprof", path.name, path.read_bytes(), through, bytes_damaged(False))


def fuzz(folder: Path, count: int, seed: int, through: Callable[[Path], object]) -> Outcome:
    """`count` damaged traces, the formats in turn."""
    outcome = Outcome()
    found = [case for case in cases(folder, through) if case.format != "xprof"] * 4
    found += [case for case in cases(folder, through) if case.format == "xprof"]
    for case in found:
        _attempt(case, folder, random.Random(0), Outcome(), damaged=False)  # a sound one first: it must be read
    gc.collect()
    before = _peak_bytes()
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        _attempt(found[number % len(found)], folder, rng, outcome)
    outcome.grown_bytes = _peak_bytes() - before
    return outcome


def _attempt(case: Case, folder: Path, rng: random.Random, outcome: Outcome, *, damaged: bool = True) -> None:
    path = folder / "damaged" / case.name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if damaged:
        case.damage(path, case.content, rng)
    else:
        path.write_bytes(case.content)
    begin = time.perf_counter()
    try:
        case.read(path)
        outcome.read[case.format] += 1
    except NearpeakError:
        if not damaged:
            raise
        outcome.refused[case.format] += 1
    except Exception as error:  # this is what the search is for
        if not damaged:
            raise
        kept = folder / f"crash-{len(outcome.crashes)}-{case.name}"
        kept.write_bytes(path.read_bytes())
        outcome.crashes.append(f"{case.format}: {type(error).__name__}: {error} ({kept})")
    took_s = time.perf_counter() - begin
    if took_s > outcome.slowest_s:
        outcome.slowest_s, outcome.slowest = took_s, case.format
    path.unlink(missing_ok=True)


def _peak_bytes() -> int:
    """Of this process, so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
