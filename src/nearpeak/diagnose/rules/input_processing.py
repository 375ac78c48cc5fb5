"""Workers use all cores and still do not keep up: the work for a sample is too much."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import HIDDEN_INPUT, gain_of
from nearpeak.diagnose.rules._common import at, costs, percent
from nearpeak.diagnose.rules._input import input_wait
from nearpeak.finding import Finding

__all__ = ["find"]


def find(facts: Facts) -> list[Finding]:
    """More workers do not help where all cores are busy."""
    wait = input_wait(facts)
    if wait is None or wait.cause != "processing":
        return []
    where = at(wait.place)
    return [
        costs(
            "input",
            f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for input: the work for each sample "
            f"keeps all {wait.cores} cores busy{where}",
            facts,
            gain_of(wait.share, HIDDEN_INPUT),
            remedy=f"Do the work of each sample once, before training, and store its result (decoded, resized, "
            f"tokenised){': ' + wait.place.frame if wait.place else ''}; or use a machine with more cores for its "
            "device. More workers will not help.",
            verify="Run again: the phase `input` must fall below 5 % of the step.",
            formula="share of the step × 0.35 to 1.0, likely 0.75",
            input_ms=wait.wait_ms,
            step_ms=wait.step_ms,
            fetch_ms=wait.fetch_ms,
            cpu_ms=wait.cpu_ms,
            workers=wait.workers,
            cores=wait.cores,
        )
    ]
