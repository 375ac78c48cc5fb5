"""`Diagnosis`: what was seen, what holds it back, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules import findings
from nearpeak.finding import Finding

__all__ = ["SMALLEST_GAIN", "Diagnosis", "conclude", "folded_away"]

SMALLEST_GAIN = 0.03
"""Findings whose likely gain is below it are folded away: they are within the noise of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Of one run, trace or log."""

    facts: Facts
    findings: tuple[Finding, ...]
    """Ranked; those worth acting on."""
    folded: tuple[Finding, ...] = ()
    """Those whose gain is small."""
    unknown: tuple[str, ...] = ()
    """What could not be told, each as a sentence with its reason."""


def folded_away(finding: Finding) -> bool:
    """A gain that is known and small. What cannot be counted in time stays in view."""
    return finding.gain is not None and finding.gain.likely < SMALLEST_GAIN


def conclude(facts: Facts, unknown: Iterable[str] = ()) -> Diagnosis:
    """Ask all rules; the same for recordings, traces and logs."""
    found = findings(facts)
    return Diagnosis(
        facts=facts,
        findings=tuple(finding for finding in found if not folded_away(finding)),
        folded=tuple(finding for finding in found if folded_away(finding)),
        unknown=tuple(unknown),
    )
