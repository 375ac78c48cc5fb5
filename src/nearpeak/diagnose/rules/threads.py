"""CPU threads: cores that nobody uses, or more threads than cores."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions, gain_of
from nearpeak.diagnose.rules._common import costs, phase_share
from nearpeak.diagnose.rules._work import SMALL_OPERATION_MS, operation_ms
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["find"]

WORTH_SPLITTING_MS = 4 * SMALL_OPERATION_MS
"""An operation is split at a cost of some 10 µs for waking and joining threads."""
COMPUTED = ("forward", "backward", "optimizer")
SPREAD = Portions(0.35, 0.9, 1.05)
"""Of what ideal splitting would save: memory is shared, some operations stay on one thread."""
MANY_TIMES = 1.5
"""Threads for each core from which on they hold each other up: pools of libraries overlap a little anyway."""
FIGHTING = Portions(0.05, 0.35, 0.9)
"""At each join all wait for the last thread to get a core again: from hardly anything, where operations are long, to
nearly everything, where they are short. How much it is shows in the time that the training thread has no core."""
OFF_CORE_WORST, OFF_CORE_BEST = 0.3, 0.8


def find(facts: Facts) -> list[Finding]:
    """Where the training computes on the CPU."""
    run = facts.run
    if run is None or not run.process.cores or not run.process.threads:
        return []
    return [*_too_many(facts, run), *_too_few(facts, run)]


def _too_few(facts: Facts, run: RunFacts) -> list[Finding]:
    cores, threads = run.process.cores or 1, run.process.threads or 1
    # A loader worker that shares its core with a thread holds all threads up at their next join.
    free = max(1, cores // _processes(run) - (run.process.loader_workers or 0))
    long_ms = operation_ms(run)
    if not run.on_host or threads >= free or long_ms is None or long_ms < WORTH_SPLITTING_MS:
        return []
    compute = sum(phase_share(run, phase) for phase in COMPUTED)
    ideal = compute * (1 - threads / free)
    cpu_ms = run.per_step.get("cpu_ms")
    return [
        costs(
            "threads",
            f"{threads * _processes(run)} of {cores} CPU cores compute: "
            f"{(free - threads) * _processes(run)} are left idle",
            facts,
            gain_of(min(MOST, ideal), SPREAD),
            remedy=f"torch.set_num_threads({free}), or OMP_NUM_THREADS={free} before the start"
            + (f" (now {run.process.environment['OMP_NUM_THREADS']})" if _set(run) else "")
            + (". torchrun sets it to 1 unless you do." if run.world_size > 1 else "."),
            verify="Run again: CPU time a step ÷ its wall time must come closer to the number of cores.",
            formula="share of compute × (1 − threads ÷ cores) × 0.35 to 1.05, likely 0.9",
            threads=threads,
            cores=cores,
            cores_in_use=None if cpu_ms is None else cpu_ms / run.mean_step_ms,
            compute_share=compute,
            operation_ms=long_ms,
            step_ms=run.mean_step_ms,
        )
    ]


def _set(run: RunFacts) -> bool:
    return "OMP_NUM_THREADS" in run.process.environment


def _processes(run: RunFacts) -> int:
    """Ranks that share the cores of this machine."""
    return max(1, len(run.ranks))


def _too_many(facts: Facts, run: RunFacts) -> list[Finding]:
    cores, threads = run.process.cores or 1, run.process.threads or 1
    wanted = threads * _processes(run)
    if wanted < MANY_TIMES * cores or not run.on_host:
        return []
    compute = sum(phase_share(run, phase) for phase in COMPUTED)
    fitting = max(1, cores // _processes(run))
    return [
        costs(
            "threads",
            f"{wanted} threads compute on {cores} CPU cores: they hold each other up"
            + (f" ({len(run.ranks)} ranks with {threads} each)" if len(run.ranks) > 1 else ""),
            facts,
            _gain(run, compute),
            remedy=f"OMP_NUM_THREADS={fitting} before the start, or torch.set_num_threads({fitting})"
            + (f" in each of the {len(run.ranks)} ranks" if len(run.ranks) > 1 else ""),
            verify="Run again with that many threads: the step must be shorter.",
            formula="time of compute that the training thread had no core, low 0.3 of it, high 0.8 of what is left as "
            "well; unknown: share of compute × 0.05 to 0.9, likely 0.35",
            threads=wanted,
            cores=cores,
            compute_share=compute,
            main_cpu_ms=run.per_step.get("main_cpu_ms"),
            step_ms=run.mean_step_ms,
        )
    ]


def _gain(run: RunFacts, compute: float) -> Interval:
    main_cpu_ms = run.per_step.get("main_cpu_ms")
    if main_cpu_ms is None:
        return gain_of(compute, FIGHTING)
    off_core = min(compute, max(0.0, 1 - main_cpu_ms / run.mean_step_ms))
    best = off_core + OFF_CORE_BEST * (compute - off_core)
    return Interval(OFF_CORE_WORST * off_core, min(MOST, off_core), min(MOST, best))
