"""The device's memory is full, so it is taken for busy; it is idle."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import evidence
from nearpeak.finding import Finding

__all__ = ["find"]

FULL = 0.85
IDLE_PERCENT = 50.0
"""The bound of PyTorch's own TensorBoard plugin for low utilisation."""


def find(facts: Facts) -> list[Finding]:
    """Says what the memory does not: full memory is no work. The causes of the idling have findings of their own."""
    run = facts.run
    if run is None:
        return []
    device = next((each for each in run.readings if each.device == (run.process.device_index or 0)), None)
    if device is None or device.memory_used_share is None or device.busy_percent is None:
        return []
    if device.memory_used_share < FULL or device.busy_percent >= IDLE_PERCENT:
        return []
    return [
        Finding(
            kind="memory_pressure",
            title=f"The device's memory is {100 * device.memory_used_share:.0f} % full, yet a kernel runs only "
            f"{device.busy_percent:.0f} % of the time: it is not busy",
            evidence=evidence(
                facts.source, memory_used_share=device.memory_used_share, busy_percent=device.busy_percent
            ),
            severity="info",
            remedy="A larger batch or a larger device will not help: the other findings say what the device waits for.",
            gain=None,
            verify="Run again after their remedies: kernels must run more than half of the time.",
        )
    ]
