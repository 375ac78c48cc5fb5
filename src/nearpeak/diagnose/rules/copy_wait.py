"""Copies between host and device that nothing hides: from pageable memory, or too many small ones."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._settings import loader
from nearpeak.diagnose.trace_facts import TraceFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.03
"""Of the step: XProf tells of causes other than input from 3 %."""
PAGEABLE_PART = 0.5
TINY_BYTES, MANY_COPIES = 64 * 1024, 16
"""A copy over PCIe takes about 10 µs before its first byte; 64 KiB is what 4.0 ×16 moves in little more than 2 µs."""
HIDDEN_COPY = Portions(0.3, 0.7, 1.0)
"""Copies from pinned memory run beside compute if the host is ahead; from pageable memory they never do."""


def find(facts: Facts) -> list[Finding]:
    """The device waits while data is on its way to it."""
    share = facts.breakdown.share("copy") if facts.breakdown else 0.0
    if share < SMALLEST_SHARE:
        return []
    means = facts.run.per_step if facts.run else {}
    cause, remedy = _cause(facts, means)
    return [
        costs(
            "copy",
            f"{percent(share)} of the step is copying that nothing hides{cause}",
            facts,
            gain_of(share, HIDDEN_COPY),
            remedy=remedy,
            verify="Run again: the share of copying must fall below 3 %.",
            formula="share of the step × 0.3 to 1.0, likely 0.7",
            copy_share=share,
            copies_per_step=means.get("copies"),
            copied_bytes_per_step=means.get("copied_bytes"),
            pageable_share=facts.trace.pageable_share if facts.trace else None,
            routes=_routes(facts.trace) if facts.trace and facts.trace.exposed_copy_ns else None,
            pageable_bytes_per_step=means.get("pageable_bytes"),
        )
    ]


def _cause(facts: Facts, means: dict[str, float]) -> tuple[str, str]:
    copied, copies = means.get("copied_bytes", 0.0), means.get("copies", 0.0)
    pinned = f"{loader(facts.run, pin_memory=True)} and batch.to(device, non_blocking=True)"
    if facts.trace is not None and facts.trace.exposed_copy_ns:
        return _cause_in_trace(facts.trace, pinned)
    if copies >= MANY_COPIES and copied / copies <= TINY_BYTES:
        return (
            f": {copies:.0f} copies of {copied / copies / 1024:.1f} KiB each",
            "Gather what a step needs into one tensor a kind before it is copied; make constants (masks, positions) "
            "on the device once.",
        )
    if copied and means.get("pageable_bytes", 0.0) >= PAGEABLE_PART * copied:
        return ", from pageable memory", f"{pinned}: only from pinned memory can a copy run beside compute."
    return "", f"{pinned}; copy the next batch on a stream of its own while the step computes."


def _cause_in_trace(trace: TraceFacts, pinned: str) -> tuple[str, str]:
    """By the route that takes most."""
    route = max(trace.exposed_copy_ns, key=lambda each: trace.exposed_copy_ns[each])
    if "H" not in route:
        where = "between devices" if route == "PtoP" else "within the device"
        return (
            f", most of it {where}",
            "Write results where they are needed (views instead of copies, out=…, torch.compile to fuse them away); "
            "what must move between devices, move while they compute.",
        )
    if (trace.pageable_share or 0.0) >= PAGEABLE_PART:
        return (
            ", most of it through pageable memory",
            f"{pinned}: only from pinned memory can a copy run beside compute.",
        )
    way = "to the device" if route.startswith("H") else "from the device"
    return f", most of it {way}", f"{pinned}; copy the next batch on a stream of its own while the step computes."


def _routes(trace: TraceFacts) -> str:
    """``HtoD 15.98 ms, DtoD 2.69 ms``: exposed, over all steps and ranks."""
    longest = sorted(trace.exposed_copy_ns.items(), key=lambda each: -each[1])
    return ", ".join(f"{route} {time_ns / 1e6:.2f} ms" for route, time_ns in longest if time_ns)
