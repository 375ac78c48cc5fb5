"""From the phases of a rank's steps to their breakdown: what the device did, as far as phases and its clock show."""

from __future__ import annotations

from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.run_facts import RankFacts, RunFacts

__all__ = ["ON_HOST", "step_breakdown"]

ON_HOST = "The training computes on the CPU: compute is the time of the forward and backward passes and the update."
NO_PHASES = "The recording has no phases: where the step's time went cannot be told."
NO_DEVICE_CLOCK = "The device's own clock was not read: when it stood idle inside the passes cannot be told."
HIDDEN_EXCHANGE = "Exchange between ranks inside the backward pass counts as compute: phases cannot part the two."
STARVED_SHARE = 0.5
"""From this share of phase boundaries at which the device had nothing left to do, it waits for its host throughout."""


def step_breakdown(run: RunFacts, rank: RankFacts, steps: int) -> tuple[Breakdown | None, list[str]]:
    """Over all judged steps of one rank, and what it leaves open."""
    if not rank.phase_ms:
        return None, [NO_PHASES]
    if run.on_host is False and "device_forward_ms" in rank.per_step:
        parts = _by_device_clock(run, rank)
        gaps = [HIDDEN_EXCHANGE] if run.world_size > 1 else []
    else:
        parts = _by_phases(run, rank)
        gaps = [ON_HOST] if run.on_host else [NO_DEVICE_CLOCK]
    return _to_breakdown(parts, steps), gaps


def _by_phases(run: RunFacts, rank: RankFacts) -> dict[str, float]:
    """What the training thread did is what was done: exact where the CPU computes."""
    phase = {name: rank.phase_ms.get(name, 0.0) for name in ("backward", "logging", "communication")}
    waited_ms = _waited_in_backward_ms(run, rank)
    late_ms = min(phase["communication"] + waited_ms, _late_peer_ms(run, rank))
    synced_ms = min(phase["logging"], rank.per_step.get("sync_ms", 0.0))
    passes = ("forward", "backward", "optimizer", "evaluation")
    return {
        "compute": sum(rank.phase_ms.get(name, 0.0) for name in passes) - waited_ms,
        "communication": phase["communication"] + waited_ms - late_ms,
        "copy": rank.phase_ms.get("copy", 0.0),
        "input": rank.phase_ms.get("input", 0.0),
        "sync": synced_ms,
        "straggler": late_ms,
        "host_work": phase["logging"] - synced_ms + rank.phase_ms.get("checkpoint", 0.0),
        "other": rank.phase_ms.get("other", 0.0),
    }


def _waited_in_backward_ms(run: RunFacts, rank: RankFacts) -> float:
    """At least so long the backward pass ran on no core: it waited for other ranks."""
    cpu_ms, told_ms = rank.per_step.get("backward_cpu_ms"), rank.phase_ms.get("communication", 0.0)
    # Where the probe saw the exchange itself, it stands in a phase of its own.
    if run.world_size < 2 or cpu_ms is None or not run.on_host or told_ms > 0:
        return 0.0
    return max(0.0, rank.phase_ms.get("backward", 0.0) - cpu_ms)


def _late_peer_ms(run: RunFacts, rank: RankFacts) -> float:
    """The others wait for the slowest; it waits for nobody."""
    return 0.0 if rank.rank == run.slowest_rank else max(0.0, run.straggler_ms or 0.0)


def _by_device_clock(run: RunFacts, rank: RankFacts) -> dict[str, float]:
    """Between the passes the device is idle for what its host did meanwhile; inside them, as far as it was starved."""
    wall_ms = sum(rank.phase_ms.values())
    names = ("device_forward_ms", "device_backward_ms", "device_optimizer_ms")
    passes_ms = min(wall_ms, sum(rank.per_step.get(name, 0.0) for name in names))
    launch_ms = _starved_ms(run, rank, passes_ms, wall_ms)
    evaluation_ms = min(wall_ms - passes_ms, rank.phase_ms.get("evaluation", 0.0))
    parts = {"compute": passes_ms - launch_ms + evaluation_ms, "launch": launch_ms}
    left_ms = wall_ms - passes_ms - evaluation_ms
    claims = {
        "input": rank.phase_ms.get("input", 0.0),
        "copy": rank.phase_ms.get("copy", 0.0),
        "communication": rank.phase_ms.get("communication", 0.0),
        "sync": min(rank.phase_ms.get("logging", 0.0), rank.per_step.get("sync_ms", 0.0)),
        "host_work": rank.phase_ms.get("logging", 0.0) + rank.phase_ms.get("checkpoint", 0.0),
    }
    for cause, claimed_ms in claims.items():
        parts[cause] = min(left_ms, claimed_ms)
        left_ms -= parts[cause]
    return {**parts, "other": left_ms}


def _starved_ms(run: RunFacts, rank: RankFacts, passes_ms: float, wall_ms: float) -> float:
    """Time inside the passes in which no kernel ran, where the device waits for launches and its counter shows it."""
    busy = next((r.busy_percent for r in run.readings if r.device == (run.process.device_index or 0)), None)
    if busy is None or rank.per_step.get("starved_share", 0.0) < STARVED_SHARE:
        return 0.0
    return max(0.0, passes_ms - busy / 100 * wall_ms)


def _to_breakdown(parts: dict[str, float], steps: int) -> Breakdown:
    times_ns = {cause: round(1e6 * max(0.0, ms) * steps) for cause, ms in parts.items()}
    idle = {cause: ns for cause, ns in times_ns.items() if cause not in ("compute", "communication", "copy")}
    return Breakdown(
        window_ns=sum(times_ns.values()),
        compute_ns=times_ns["compute"],
        communication_ns=times_ns["communication"],
        copy_ns=times_ns["copy"],
        idle_ns=idle,
    )
