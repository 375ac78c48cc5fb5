"""The allocator holds memory that it cannot use, and the device is nearly full."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import evidence, percent
from nearpeak.finding import Finding

__all__ = ["find"]

UNUSABLE_PART = 0.25
"""Of what is reserved, beyond the peak of what was in use; below, it is the usual rounding and caching."""
NEARLY_FULL = 0.8
"""Unused memory does no harm while there is enough of it."""


def find(facts: Facts) -> list[Finding]:
    """Reserved far beyond the peak of what tensors held."""
    run = facts.run
    if run is None or "reserved_bytes" not in run.per_step or "peak_bytes" not in run.per_step:
        return []
    reserved, peak = run.per_step["reserved_bytes"], run.per_step["peak_bytes"]
    device = next((each for each in run.readings if each.device == (run.process.device_index or 0)), None)
    if device is None or not device.memory_total_bytes or reserved / device.memory_total_bytes < NEARLY_FULL:
        return []
    unusable = 1 - peak / reserved
    if unusable < UNUSABLE_PART:
        return []
    return [
        Finding(
            kind="fragmentation",
            title=f"{percent(unusable)} of the memory that PyTorch holds is never in use, on a nearly full device",
            evidence=evidence(
                facts.source,
                reserved_bytes=reserved,
                peak_bytes=peak,
                device_bytes=device.memory_total_bytes,
                alloc_conf=run.process.environment.get("PYTORCH_CUDA_ALLOC_CONF"),
            ),
            severity="warning",
            remedy="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start; sort or bucket lengths so that "
            "sizes repeat. The room it gives allows larger micro-batches at the same global batch.",
            gain=None,
            verify="Run again: reserved memory must come close to the peak of what is in use.",
        )
    ]
