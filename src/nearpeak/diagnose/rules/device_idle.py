"""A device whose memory is taken and that does nothing: for much of the time, or all of it."""

from __future__ import annotations

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence, gib, percent, possible_gain
from nearpeak.finding import Finding

__all__ = ["find"]

LEAST_SHARE = 0.1
"""Pauses that are shorter together are what loading, evaluating and saving take anyway."""
LEAST_READINGS = 3
"""One or two readings may have met a pause by chance."""
ALWAYS_SHARE = 0.98
"""So often idle, it is not a pause."""
ALWAYS_READINGS = 20
ALWAYS_S = 60.0
"""A job that begins may load and compile for a minute before it computes."""


def find(facts: Facts) -> list[Finding]:
    """Memory that is full says that something was put there, and nothing of work.

    Of a run that was watched from inside, other rules know what its device waits for.
    """
    if facts.run is not None:
        return []
    found = [_judge(device) for device in facts.devices]
    return [finding for finding in found if finding is not None]


def _judge(device: DeviceFacts) -> Finding | None:
    held = device.held_idle.count + device.held_busy.count
    if device.held_idle.count < LEAST_READINGS:
        return None
    share = device.held_idle.count / held
    lasting = held >= ALWAYS_READINGS and (device.span_s or 0.0) >= ALWAYS_S
    if share >= ALWAYS_SHARE:
        return _reserved(device, share) if lasting else None
    return _pauses(device, share, held) if share >= LEAST_SHARE else None


def _memory(device: DeviceFacts) -> str:
    if device.memory_used_share is None:
        return f"holds {gib(device.memory_used_bytes)}"
    return f"has {percent(device.memory_used_share)} of its memory in use"


def _reserved(device: DeviceFacts, share: float) -> Finding:
    who = "" if not device.processes else f" by {device.processes} process{'es' if device.processes > 1 else ''}"
    return Finding(
        kind="reserved",
        title=f"{device.label} {_memory(device)}{who} and does nothing",
        evidence=evidence(
            device,
            idle_share=share,
            mean_busy_percent=device.busy_percent,
            memory_used_bytes=device.memory_used_bytes,
            span_s=device.span_s,
            processes=device.processes,
        ),
        severity="warning",
        remedy="End the processes that hold it, or give it work: a notebook keeps its memory until its kernel is shut "
        "down; a job that waits for others (a lock, a queue, a peer) shows in its own log.",
        gain=None,
        verify="Its memory must fall to what the driver holds, or its utilisation rise.",
    )


def _pauses(device: DeviceFacts, share: float, held: int) -> Finding:
    return Finding(
        kind="idle",
        title=f"{device.label} {_memory(device)}, yet it was idle in {percent(share)} of the readings: full memory is "
        "no work",
        evidence=evidence(
            device,
            idle_share_while_memory_is_held=share,
            readings_while_memory_is_held=held,
            mean_busy_percent=device.busy_percent,
            memory_used_bytes=device.memory_used_bytes,
        ),
        severity="warning" if share >= 2 * LEAST_SHARE else "info",
        remedy="A larger batch or a larger device does not help a device that waits. Run the training as `nearpeak run "
        "COMMAND`: it tells whether input, Python, evaluation or saving takes this time.",
        gain=possible_gain(share),
        verify="The share of idle readings must fall, at the same memory.",
    )
