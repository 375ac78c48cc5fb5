"""Reading waits for storage, and nothing reads ahead."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import at, costs, percent
from nearpeak.diagnose.rules._input import input_wait
from nearpeak.diagnose.rules._settings import loader
from nearpeak.finding import Finding

__all__ = ["find"]


def find(facts: Facts) -> list[Finding]:
    """Most of the fetching is on no core: it waits for a disk, a network or a lock."""
    wait = input_wait(facts)
    if wait is None or wait.cause != "storage":
        return []
    workers = wait.workers_needed()
    read = facts.run.per_step.get("read_bytes") if facts.run else None
    return [
        costs(
            "input",
            f"{wait.wait_ms:.1f} ms ({percent(wait.share)}) of each step wait for slow storage{at(wait.place)}: "
            "samples are read one after another, none ahead",
            facts,
            wait.gain_with_workers(workers),
            remedy=f"Read ahead: {loader(facts.run, num_workers=workers, persistent_workers=True)}; waiting workers "
            "need no core of their own. Or copy the data to a local disk, in few large files, before training.",
            verify="Run again: the phase `input` must fall below 5 % of the step.",
            formula="1 − max(step without the wait, fetching ÷ workers, all CPU time ÷ cores) ÷ step; "
            "low 0.35 of it, high the whole wait",
            input_ms=wait.wait_ms,
            step_ms=wait.step_ms,
            fetch_ms=wait.fetch_ms,
            blocked_share=wait.blocked_share,
            read_bytes_per_step=read,
            workers=wait.workers,
        )
    ]
