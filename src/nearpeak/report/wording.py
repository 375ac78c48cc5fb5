"""Words that all renderings share: names of causes and phases, and the verdict in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.diagnose.breakdown import IDLE_CAUSES, Breakdown
from nearpeak.diagnose.diagnosis import SMALLEST_GAIN, Diagnosis
from nearpeak.diagnose.facts import Facts
from nearpeak.report.figures import duration_text, share_text

__all__ = [
    "CAUSES",
    "PHASE_NAMES",
    "SEVERITY_NAMES",
    "Part",
    "folded_text",
    "mean_step_ms",
    "parts",
    "subline",
    "verdict",
]

CAUSES: dict[str, str] = {
    "compute": "computing",
    "communication": "exchange between ranks",
    "copy": "copies host ↔ device",
    "input": "waiting for data",
    "host_work": "host work",
    "launch": "launching kernels",
    "sync": "synchronising",
    "straggler": "waiting for a slow rank",
    "profiler": "the profiler itself",
    "other": "other idle time",
}
"""Each cause of a breakdown, as a reader calls it."""
MEANINGS: dict[str, str] = {
    "compute": "kernels run (on a CPU: forward, backward and update)",
    "communication": "exchange between ranks that nothing hides",
    "copy": "copies between host and device that nothing hides",
    **IDLE_CAUSES,
}

PHASE_NAMES: dict[str, str] = {
    "input": "waiting for data",
    "copy": "copy to device",
    "forward": "forward",
    "backward": "backward",
    "communication": "communication",
    "optimizer": "optimizer",
    "logging": "logging, metrics",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "other": "other",
}

SEVERITY_NAMES: dict[str, str] = {"critical": "critical", "warning": "worth acting on", "info": "good to know"}


_SMALL = f"{100 * SMALLEST_GAIN:g} %"


@dataclass(frozen=True, slots=True)
class Part:
    """One cause of a step's time, ready to be shown."""

    cause: str
    name: str
    meaning: str
    share: float
    time_ms: float | None
    """Per step; None where the number of steps is not known."""


def parts(breakdown: Breakdown, step_ms: float | None = None, *, least_share: float = 0.0005) -> list[Part]:
    """The causes of a breakdown that take any time, in the order in which they are always shown."""
    found = []
    for cause, name in CAUSES.items():
        share = breakdown.share(cause)
        if share >= least_share:
            time_ms = None if step_ms is None else share * step_ms
            found.append(Part(cause, name, MEANINGS[cause], share, time_ms))
    return found


def mean_step_ms(facts: Facts) -> float | None:
    """What the shares of a breakdown are shares of; None where it is not known how many steps it is over."""
    if facts.run is not None:
        return facts.run.mean_step_ms
    counted = facts.steps * max(1, len(facts.ranks))
    return facts.breakdown.window_ns / 1e6 / counted if facts.breakdown is not None and counted else facts.step_ms


def verdict(diagnosis: Diagnosis) -> str:
    """The one sentence that somebody reads who reads no more."""
    if diagnosis.findings:
        return diagnosis.findings[0].title.rstrip(".") + "."
    if diagnosis.facts.breakdown is None:
        if diagnosis.facts.devices:
            return "Nothing is amiss in the readings of the devices."
        return "What was seen does not suffice for a verdict."
    return f"Nothing found that would save {_SMALL} or more of a step."


def subline(diagnosis: Diagnosis) -> str:
    """Behind the verdict: how long a step takes, and where most of it goes."""
    facts, words = diagnosis.facts, []
    if facts.step_ms is not None:
        words.append(f"a step takes {duration_text(facts.step_ms)} (median of {facts.steps:,})")
    if facts.breakdown is not None:
        shown = parts(facts.breakdown, least_share=0.01)
        largest = sorted((part for part in shown if part.cause != "compute"), key=lambda part: -part.share)[:2]
        shares = [f"{share_text(facts.breakdown.share('compute'))} {CAUSES['compute']}"]
        words.append(", ".join(shares + [f"{share_text(part.share)} {part.name}" for part in largest]))
    text = ": ".join(words)
    return text[:1].upper() + text[1:] + "." if text else ""


def folded_text(diagnosis: Diagnosis) -> str:
    """How many findings are not shown, and why."""
    count = len(diagnosis.folded)
    which = "1 finding saves" if count == 1 else f"{count} findings save"
    each = "" if count == 1 else " each"
    return f"{which} less than {_SMALL} of a step{each}" if count else ""
