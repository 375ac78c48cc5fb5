"""Python's garbage collector runs in every step."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import at, costs, hottest, percent
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.03
LEFT_TO_PYTHON = Portions(0.6, 0.95, 1.15)
"""Python's own collections remain, of young objects mostly. A full one also empties caches of the processor, which is
why somewhat more than its own time may come back."""
EACH_STEP = 0.5
"""From this many full collections a step it is somebody's call, not Python's own rhythm."""


def find(facts: Facts) -> list[Finding]:
    """Collecting takes a share of the step."""
    run = facts.run
    if run is None:
        return []
    share = run.per_step.get("collect_ms", 0.0) / run.mean_step_ms
    if share < SMALLEST_SHARE:
        return []
    count = run.per_step.get("collections", 0.0)
    place = hottest(run, "other")
    called = "Leave out gc.collect()" if count >= EACH_STEP else "Call gc.freeze() once the model and data are loaded"
    return [
        costs(
            "host_work",
            f"Python's garbage collector takes {percent(share)} of the step: {count:.1f} collections a step",
            facts,
            gain_of(min(share, 0.98), LEFT_TO_PYTHON),
            remedy=f"{called}{at(place)}. It frees no device memory that reference counting has not freed before; "
            "with many live objects, gc.freeze() after loading keeps them out of every later collection.",
            verify="Run again: fewer collections, and the step shorter by their time.",
            formula="time of collections ÷ step × 0.6 to 1.15, likely 0.95",
            collections_per_step=count,
            collect_ms=run.per_step.get("collect_ms"),
            step_ms=run.mean_step_ms,
        )
    ]
