"""Memory grows from step to step: something keeps what should go."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._common import at, evidence, hottest
from nearpeak.diagnose.run_facts import GrowthFacts, RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

ALWAYS_RISING = 0.85
"""Of eight parts of the run, all but one must be above the one before: caches fill up and stop, leaks do not."""
SMALLEST_GROWTH_BYTES = 64 * 2**20
"""Over the steps that were judged; allocators and interpreters wander by some tens of MiB."""
SMALLEST_STEP_BYTES = 16 * 1024
GIB = 2**30


def find(facts: Facts) -> list[Finding]:
    """Of the device's memory if it grows, else of the process's."""
    if facts.run is None:
        return []
    growing = [each for each in facts.run.growth if _grows(each)]
    return [_finding(facts, facts.run, growing[0])] if growing else []


def _grows(growth: GrowthFacts) -> bool:
    return (
        growth.rising_share >= ALWAYS_RISING
        and growth.last_bytes - growth.first_bytes >= SMALLEST_GROWTH_BYTES
        and growth.bytes_per_step >= SMALLEST_STEP_BYTES
    )


def _finding(facts: Facts, run: RunFacts, growth: GrowthFacts) -> Finding:
    where = "on the device" if growth.memory == "device" else "in the process"
    per_thousand = growth.bytes_per_step * 1000 / GIB
    return Finding(
        kind="memory_growth",
        title=f"Memory {where} grows by {growth.bytes_per_step / 1024:,.0f} KiB a step: "
        f"{per_thousand:.1f} GiB every 1,000 steps",
        evidence=evidence(
            facts.source,
            bytes_per_step=growth.bytes_per_step,
            first_bytes=growth.first_bytes,
            last_bytes=growth.last_bytes,
            rising_share=growth.rising_share,
            steps_until_full=_steps_until_full(run, growth),
        ),
        severity="critical",
        remedy="Keep numbers, not tensors with their graph: history.append(loss.item()) or loss.detach(), in place of "
        f"history.append(loss). Look for lists, dicts and caches that are filled in each step"
        f"{at(hottest(run, 'other'))}. nearpeak snapshot explains a memory snapshot of a CUDA run.",
        gain=None,
        verify="Run again: memory must stay level after the first steps.",
    )


def _steps_until_full(run: RunFacts, growth: GrowthFacts) -> int | None:
    """None where the size of the memory was not read."""
    device = -1 if growth.memory == "process" else run.process.device_index or 0
    size = next((each.memory_total_bytes for each in run.readings if each.device == device), None)
    return None if size is None else max(0, int((size - growth.last_bytes) / growth.bytes_per_step))
