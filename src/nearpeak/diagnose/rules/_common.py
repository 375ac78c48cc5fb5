"""What rules share: evidence with its source, findings whose severity follows from the gain, places in the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import severity_of
from nearpeak.diagnose.run_facts import PlaceFacts, RunFacts
from nearpeak.finding import Evidence, Finding
from nearpeak.forecast import Interval

__all__ = [
    "Place",
    "around_reads_ms",
    "at",
    "costs",
    "evidence",
    "hottest",
    "percent",
    "phase_share",
    "share_of_places",
    "users_frame",
]

DIGITS = 4
MANY_READS = 100
"""A step: then a loop over them, and what it makes of them, takes more than the reads."""
LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "<frozen", "<string>", "nearpeak/observe/")
"""Parts of the path of code that is not the user's."""


class Place(NamedTuple):
    """A line of the user's code and how much of the samples met it."""

    frame: str
    share: float


def evidence(source: str, **values: float | int | str | bool | None) -> tuple[Evidence, ...]:
    """One for each value that is known, its name with the unit."""
    return tuple(Evidence(name, _short(value), source) for name, value in values.items() if value is not None)


def costs(
    kind: str, title: str, facts: Facts, gain: Interval, *, remedy: str, verify: str, formula: str, **values: object
) -> Finding:
    """A finding that is counted in time; `formula` says how its gain was reckoned."""
    known = {name: value for name, value in values.items() if isinstance(value, float | int | str | bool)}
    return Finding(
        kind=kind,
        title=title,
        evidence=(*evidence(facts.source, **known), Evidence("gain_formula", formula, "docs/diagnose.md")),
        severity=severity_of(gain),
        remedy=remedy,
        gain=gain,
        verify=verify,
    )


def percent(share: float) -> str:
    """`12 %`; below ten with a digit more."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def phase_share(run: RunFacts, phase: str) -> float:
    """Of the mean step, 0 to 1."""
    return run.phase_ms.get(phase, 0.0) / run.mean_step_ms if run.mean_step_ms > 0 else 0.0


def users_frame(frames: Iterable[str]) -> str | None:
    """The innermost frame that is the user's own code."""
    return next((frame for frame in frames if not any(part in frame for part in LIBRARIES)), None)


def hottest(run: RunFacts, *phases: str) -> Place | None:
    """Where most samples of these phases were met; the share is of the samples of these phases."""
    shares: dict[str, float] = defaultdict(float)
    met = [place for place in run.places if place.phase in phases]
    for place in met:
        frame = users_frame(place.frames) or (place.frames[0] if place.frames else None)
        if frame is not None:
            shares[frame] += place.share
    if not shares:
        return None
    frame = max(shares, key=lambda each: shares[each])
    return Place(frame, shares[frame] / max(sum(place.share for place in met), 1e-12))


def share_of_places(run: RunFacts, phases: Iterable[str], matches: Callable[[PlaceFacts], bool]) -> float | None:
    """Of the samples of these phases, how many were met in places that match; None without samples."""
    met = [place for place in run.places if place.phase in set(phases)]
    whole = sum(place.share for place in met)
    return sum(place.share for place in met if matches(place)) / whole if whole > 0 else None


def around_reads_ms(run: RunFacts) -> float:
    """Per step: Python on the very lines that read many values from tensors, beyond the reads themselves."""
    reads = run.per_step.get("syncs", 0.0)
    if reads < MANY_READS:
        return 0.0
    lines = {_line(place) for place in run.places if place.phase == "sync"}
    phases = ("other", "logging")
    share = share_of_places(run, phases, lambda place: _line(place) in lines) or 0.0
    spent_ms = sum(run.phase_ms.get(phase, 0.0) for phase in phases)
    return max(0.0, share * spent_ms - run.per_step.get("sync_ms", 0.0))


def _line(place: PlaceFacts) -> str | None:
    """`file:line` of the user's frame."""
    frame = users_frame(place.frames)
    return frame and frame.partition(" ")[0]


def at(place: Place | None) -> str:
    """For titles and remedies: `` at train.py:12 read`` or nothing."""
    return f" at {place.frame}" if place else ""


def _short(value: float | int | str | bool) -> float | int | str | bool:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
