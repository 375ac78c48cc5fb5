"""Nobody, or too few, prepare batches while the step runs."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import at, costs, percent
from nearpeak.diagnose.rules._input import InputWait, input_wait
from nearpeak.diagnose.rules._settings import loader
from nearpeak.finding import Finding

__all__ = ["find"]

IN_BURSTS = Portions(0.0, 0.4, 0.9)
"""A store helps against batches that vary, not against what their hand-over takes."""


def find(facts: Facts) -> list[Finding]:
    """The wait would vanish behind the step if batches were prepared beside it."""
    wait = input_wait(facts)
    if wait is None or wait.cause not in ("no_workers", "few_workers", "bursts"):
        return []
    if wait.cause == "bursts":
        return [_bursts(facts, wait)]
    workers = wait.workers_needed()
    if workers <= wait.workers:
        workers = wait.workers + 1
    change = loader(facts.run, num_workers=workers, persistent_workers=True)
    return [
        costs(
            "input",
            _title(wait),
            facts,
            wait.gain_with_workers(workers),
            remedy=f"{change}; now num_workers={wait.workers}. Most of the fetching is{at(wait.place)}."
            if wait.place
            else f"{change}; now num_workers={wait.workers}.",
            verify="Run again: the phase `input` must fall below 5 % of the step.",
            formula="1 − max(step without the wait, fetching ÷ workers, all CPU time ÷ cores) ÷ step; "
            "low 0.35 of it, high the whole wait",
            input_ms=wait.wait_ms,
            step_ms=wait.step_ms,
            fetch_ms=wait.fetch_ms,
            blocked_share=wait.blocked_share,
            workers=wait.workers,
            cores=wait.cores,
        )
    ]


def _bursts(facts: Facts, wait: InputWait) -> Finding:
    prefetched = (facts.run.process.loader_prefetch_factor if facts.run else None) or 2
    return costs(
        "input",
        f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for input though the {wait.workers} workers "
        "have time to spare: batches come in bursts",
        facts,
        gain_of(wait.share, IN_BURSTS),
        remedy=f"{loader(facts.run, prefetch_factor=4 * prefetched)}, now {prefetched}: a larger store evens out "
        "batches that take longer than others. Large batches: hand over fewer, larger tensors.",
        verify="Run again: the phase `input` must fall.",
        formula="wait ÷ step × 0 to 0.9, likely 0.4",
        input_ms=wait.wait_ms,
        step_ms=wait.step_ms,
        fetch_ms=wait.fetch_ms,
        workers=wait.workers,
        prefetch_factor=prefetched,
    )


def _title(wait: InputWait) -> str:
    lost = f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for input"
    if wait.cause == "no_workers":
        return f"{lost}: samples are prepared in the training process, no workers"
    return f"{lost}: too few workers ({wait.workers})"
