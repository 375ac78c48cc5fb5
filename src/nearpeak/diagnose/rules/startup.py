"""The first steps take long: compiling, choosing kernels, filling caches, starting workers."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["find"]

SMALLEST_COST_MS = 10_000.0
"""A beginning of ten seconds is paid once; it is worth a word where it is a share of the run as well."""
SMALLEST_SHARE = 0.05
SPARED = Portions(0.2, 0.6, 1.0)


def find(facts: Facts) -> list[Finding]:
    """As a share of the whole run, over the steps that are to come where their number is known."""
    run = facts.run
    if run is None or (run.first_steps_extra_ms or 0.0) < SMALLEST_COST_MS:
        return []
    cost_ms, whole_ms = run.first_steps_extra_ms or 0.0, _whole_ms(run)
    share = cost_ms / whole_ms
    if share < SMALLEST_SHARE:
        return []
    gain = Interval(*(min(MOST, share * part) for part in (SPARED.low, SPARED.likely, SPARED.high)))
    return [
        costs(
            "startup",
            f"The first {run.first_steps} steps take {cost_ms / 1000:.0f} s beyond the usual: {percent(share)} of "
            "the run",
            facts,
            gain,
            remedy="Keep what is made in them: TORCHINDUCTOR_FX_GRAPH_CACHE=1 and a TORCHINDUCTOR_CACHE_DIR that "
            "survives the run; start loader workers once (persistent_workers=True). For short runs, leave out "
            "torch.compile and torch.backends.cudnn.benchmark.",
            verify="Run again: the first steps must be shorter.",
            formula="their time beyond the usual ÷ the whole run × 0.2 to 1.0, likely 0.6",
            first_steps=run.first_steps,
            first_steps_extra_ms=cost_ms,
            run_ms=whole_ms,
        )
    ]


def _whole_ms(run: RunFacts) -> float:
    to_come = max(0, (run.process.expected_steps or 0) - run.steps_seen)
    return (run.run_ms or 0.0) + to_come * run.mean_step_ms
