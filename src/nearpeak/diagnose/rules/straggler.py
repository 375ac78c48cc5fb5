"""One rank is slower, and the others wait for it in every step."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.run_facts import RankFacts, RunFacts
from nearpeak.diagnose.trace_facts import TraceFacts, TraceRank
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.10
"""Of the step: TraceML warns of a straggler from 10 %, alarms from 20 %."""
MOST_STEPS = 0.6
"""In so many steps the same rank must be the slowest; otherwise it is chance, not the rank."""
CAUGHT_UP = Portions(0.5, 0.9, 1.1)
"""As fast as the others, its work still varies; and what slows it down slows its exchange as well."""
WAITED = Portions(0.2, 0.6, 1.0)
ARRIVING_TOGETHER = Portions(0.3, 0.8, 1.0)
"""Ranks that arrive at once wait for none: all of the waiting goes. What stays is chance, which differs by step."""
MOST_NAMED = 2
NOT_OWN = ("communication", "backward")


def find(facts: Facts) -> list[Finding]:
    """In a watched run the late rank is known; in a trace, that ranks wait for one another."""
    if facts.run is not None:
        return _of_run(facts, facts.run)
    if facts.trace is not None and facts.trace.waiting_share is not None:
        return _of_trace(facts, facts.trace)
    share = facts.breakdown.share("straggler") if facts.breakdown else 0.0
    if share < SMALLEST_SHARE:
        return []
    waits = [rank.share("straggler") for rank in facts.ranks]
    late = waits.index(min(waits)) if len(waits) > 1 else None
    return [
        costs(
            "straggler",
            f"Ranks wait {percent(share)} of the step for a slower one"
            + (f": rank {late}" if late is not None else ""),
            facts,
            gain_of(share, WAITED),
            remedy="Find what is different where the late rank runs: its input, its share of the data (lengths), its "
            "device's clock and link, other processes on its machine.",
            verify="Record again: idle time by stragglers must fall below 10 % on every rank.",
            formula="share of the step × 0.2 to 1.0, likely 0.6",
            straggler_share=share,
            late_rank=late,
            step_ms=facts.step_ms,
        )
    ]


def _of_trace(facts: Facts, trace: TraceFacts) -> list[Finding]:
    """The ranks' arrivals at each exchange were compared."""
    share = trace.waiting_share or 0.0
    costs_ms = {_label(each, trace): each.cost_ms for each in trace.ranks if each.cost_ms is not None}
    if share < SMALLEST_SHARE or not costs_ms:
        return []
    usual_ms = sum(costs_ms.values()) / len(costs_ms)
    late = [rank for rank in sorted(costs_ms, key=lambda rank: -costs_ms[rank]) if costs_ms[rank] >= usual_ms]
    named = late[: MOST_NAMED if len(costs_ms) > MOST_NAMED + 1 else 1]
    told = " and ".join(f"{rank} ({costs_ms[rank]:.1f} ms a step)" for rank in named)
    return [
        costs(
            "straggler",
            f"Ranks wait {percent(share)} of the step in exchanges for late ones; most cost the others {told}",
            facts,
            gain_of(min(share, 0.98), ARRIVING_TOGETHER),
            remedy="Find what is different where the late ranks run: their input, their share of the data (lengths, "
            "embedding tables), their device's clock and link, other processes on their machine.",
            verify="Record again: all ranks must wait about as long, and less than 10 % of the step.",
            formula="time from a rank's arrival at an exchange to the last rank's ÷ step × 0.3 to 1.0, likely 0.8",
            waiting_share=share,
            late_ranks=", ".join(rank.removeprefix("rank ") for rank in named),
            **{f"{rank.replace(' ', '_')}_cost_ms": costs_ms[rank] for rank in named},
            step_ms=facts.step_ms,
        )
    ]


def _label(each: TraceRank, trace: TraceFacts) -> str:
    """By rank; devices of one process by their number, of several processes by both."""
    same = sum(other.rank == each.rank for other in trace.ranks)
    if each.rank is not None and same == 1:
        return f"rank {each.rank}"
    several = len({other.rank for other in trace.ranks}) > 1
    return f"GPU {each.device} of rank {each.rank}" if several else f"GPU {each.device}"


def _of_run(facts: Facts, run: RunFacts) -> list[Finding]:
    late_ms, steps = run.straggler_ms or 0.0, run.slowest_share or 0.0
    if late_ms / run.mean_step_ms < SMALLEST_SHARE or steps < MOST_STEPS or run.slowest_rank is None:
        return []
    phase, more_ms = _where(run)
    share = late_ms / run.mean_step_ms
    return [
        costs(
            "straggler",
            f"Rank {run.slowest_rank} is {late_ms:.1f} ms ({percent(share)}) slower in each step, and the others wait: "
            f"most of it in its phase `{phase}`",
            facts,
            gain_of(min(share, 0.98), CAUGHT_UP),
            remedy=_remedy(run.slowest_rank, phase),
            verify=f"Run again: rank {run.slowest_rank} must not be the slowest in most steps.",
            formula="(own work of the rank − mean of the others') ÷ step × 0.5 to 1.1, likely 0.9",
            rank=run.slowest_rank,
            late_ms=late_ms,
            slowest_in_share_of_steps=steps,
            phase=phase,
            phase_more_ms=more_ms,
            step_ms=run.mean_step_ms,
        )
    ]


def _where(run: RunFacts) -> tuple[str, float]:
    """The phase in which it takes the most beyond the others."""
    late = next(rank for rank in run.ranks if rank.rank == run.slowest_rank)
    others = [rank for rank in run.ranks if rank is not late]
    more = {name: ms - _mean(others, name) for name, ms in late.phase_ms.items() if name not in NOT_OWN}
    phase = max(more, key=lambda name: more[name])
    return phase, more[phase]


def _mean(ranks: list[RankFacts], phase: str) -> float:
    return sum(rank.phase_ms.get(phase, 0.0) for rank in ranks) / max(1, len(ranks))


def _remedy(rank: int, phase: str) -> str:
    if phase == "input":
        return (
            f"Give rank {rank} its data as fast as the others get theirs: same storage, as many loader workers, "
            "samples of like size (DistributedSampler over the same dataset)."
        )
    if phase in ("logging", "checkpoint", "evaluation"):
        return f"Rank {rank} does work that the others wait for ({phase}): do it less often, or beside the training."
    return (
        f"Look at what is different where rank {rank} runs: lengths of its samples, its device's clock, temperature "
        "and link, CPU cores it shares with other processes."
    )
