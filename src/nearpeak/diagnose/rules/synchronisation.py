"""The training thread reads values from tensors, or waits for the device, in every step."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.run_facts import PlaceFacts, RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.03
EVERY_STEP = 1.0
RARELY_READ = Portions(0.6, 0.95, 1.5)
"""Reading every fiftieth step leaves 2 %. More than the reads may come back: what is made of the values (lists, sums in
Python) goes with them, which is why the best case is above their own time."""
BESIDE = Portions(0.3, 0.7, 1.0)


def find(facts: Facts) -> list[Finding]:
    """In a watched run from its own counts; of a trace from the time that the device was idle meanwhile."""
    if facts.run is None:
        return _of_trace(facts)
    run = facts.run
    lost_ms = _lost_ms(facts, run)
    if run.per_step.get("syncs", 0.0) < EVERY_STEP or lost_ms / run.mean_step_ms < SMALLEST_SHARE:
        return []
    share = lost_ms / run.mean_step_ms
    place = _place(run)
    return [
        costs(
            "sync",
            f"{run.per_step['syncs']:.0f} values a step are read from tensors{f' at {place}' if place else ''}: "
            f"{lost_ms:.1f} ms ({percent(share)}) of each step",
            facts,
            gain_of(min(share, 0.98), RARELY_READ),
            remedy=_remedy(run, place),
            verify="Run again: fewer than one synchronisation a step, and the step shorter by their time.",
            formula="time of the reads ÷ step × 0.6 to 1.5, likely 0.95",
            syncs_per_step=run.per_step["syncs"],
            sync_ms=run.per_step.get("sync_ms"),
            lost_ms=lost_ms,
            step_ms=run.mean_step_ms,
        )
    ]


def _lost_ms(facts: Facts, run: RunFacts) -> float:
    """On a CPU a read costs what it takes. On a device only what then stands idle: the wait itself is the device's
    work, which has to be done anyway."""
    spent_ms = run.per_step.get("sync_ms", 0.0)
    if run.on_host or facts.breakdown is None:
        return spent_ms
    idle = facts.breakdown.share("sync") + facts.breakdown.share("launch")
    return min(spent_ms, idle * run.mean_step_ms)


def _place(run: RunFacts) -> str | None:
    from nearpeak.diagnose.rules._common import users_frame

    known: list[PlaceFacts] = [place for place in run.places if place.phase == "sync"]
    if not known:
        return None
    slowest = max(known, key=lambda place: place.total_ms or 0.0)
    return users_frame(slowest.frames) or (slowest.frames[0] if slowest.frames else None)


def _remedy(run: RunFacts, place: str | None) -> str:
    change = trainer_argument(
        run,
        transformers="TrainingArguments(logging_steps=50, logging_nan_inf_filter=False)",
        lightning="Trainer(log_every_n_steps=50)",
        plain="Keep the values on the device (total += loss.detach()) and read them every fiftieth step: "
        "if step % 50 == 0: print(total.item())",
    )
    return f"{change}.{f' Now they are read at {place}.' if place else ''}"


def _of_trace(facts: Facts) -> list[Finding]:
    share = facts.breakdown.share("sync") if facts.breakdown else 0.0
    if share < SMALLEST_SHARE:
        return []
    return [
        costs(
            "sync",
            f"The device is idle {percent(share)} of the step after the host waited for it",
            facts,
            gain_of(share, BESIDE),
            remedy="Read values (.item(), .cpu(), printing a loss) every fiftieth step, and keep them on the device "
            "until then.",
            verify="Record again: idle time by synchronisation must fall below 3 %.",
            formula="share of the step × 0.3 to 1.0, likely 0.7",
            sync_share=share,
            step_ms=facts.step_ms,
        )
    ]
