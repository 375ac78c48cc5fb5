"""The training thread reads values from tensors, or waits for the device, in every step."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions, gain_of
from nearpeak.diagnose.rules._common import around_reads_ms, costs, percent, users_frame
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.run_facts import PlaceFacts, RunFacts
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["find"]

SMALLEST_SHARE = 0.03
EVERY_STEP = 1.0
RARELY_READ = Portions(0.6, 1.0, 1.5)
"""Reading every fiftieth step leaves 2 %; what is made of the values (lists, sums in Python) goes with them. The
probe's own count of many reads a step stands in that Python too, which is why half of it is taken as likely."""
BESIDE = Portions(0.3, 0.7, 1.0)


def find(facts: Facts) -> list[Finding]:
    """In a watched run from its own counts; of a trace from the time that the device was idle meanwhile."""
    if facts.run is None:
        return _of_trace(facts)
    run = facts.run
    lost_ms = _lost_ms(facts, run)
    slight = lost_ms + around_reads_ms(run) < SMALLEST_SHARE * run.mean_step_ms
    if run.per_step.get("syncs", 0.0) < EVERY_STEP or slight:
        return []
    around_ms = around_reads_ms(run)
    share = (lost_ms + around_ms) / run.mean_step_ms
    place = _place(run)
    return [
        costs(
            "sync",
            f"{run.per_step['syncs']:.0f} values a step are read from tensors{f' at {place}' if place else ''}: "
            f"{lost_ms + around_ms:.1f} ms ({percent(share)}) of each step",
            facts,
            _gain(run, lost_ms, around_ms),
            remedy=_remedy(run, place),
            verify="Run again: fewer than one synchronisation a step, and the step shorter by their time.",
            formula="low 0.6 × time of the reads ÷ step, likely with half of the Python on their lines, "
            "high 1.5 × reads with all of it",
            around_reads_ms=around_ms,
            syncs_per_step=run.per_step["syncs"],
            sync_ms=run.per_step.get("sync_ms"),
            lost_ms=lost_ms,
            step_ms=run.mean_step_ms,
        )
    ]


def _gain(run: RunFacts, lost_ms: float, around_ms: float) -> Interval:
    low, likely, high = RARELY_READ.low * lost_ms, lost_ms + around_ms / 2, RARELY_READ.high * lost_ms + around_ms
    return Interval(*(min(MOST, each / run.mean_step_ms) for each in (low, likely, high)))


def _lost_ms(facts: Facts, run: RunFacts) -> float:
    """On a CPU a read costs what it takes. On a device only what then stands idle: the wait itself is the device's
    work, which has to be done anyway."""
    spent_ms = run.per_step.get("sync_ms", 0.0)
    if run.on_host or facts.breakdown is None:
        return spent_ms
    idle = facts.breakdown.share("sync") + facts.breakdown.share("launch")
    return min(spent_ms, idle * run.mean_step_ms)


def _place(run: RunFacts) -> str | None:
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
