"""What rules look at. A source fills in what it knows; a rule that lacks an input says nothing."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.device_facts import DeviceFacts, HostFacts
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.diagnose.trace_facts import TraceFacts

__all__ = ["Facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One run, trace or log, reduced to numbers."""

    source: str
    """For the evidence of findings: ``steps 10 to 109 of the recording``."""
    steps: int = 0
    step_ms: float | None = None
    """Median."""
    breakdown: Breakdown | None = None
    """Over all steps and ranks."""
    ranks: tuple[Breakdown, ...] = ()
    """The same per rank, by rank."""
    trace: TraceFacts | None = None
    run: RunFacts | None = None
    devices: tuple[DeviceFacts, ...] = ()
    host: HostFacts | None = None
