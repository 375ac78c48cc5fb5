"""Devices of one machine that work unequally, or not at all."""

from __future__ import annotations

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence
from nearpeak.finding import Finding

__all__ = ["find"]

LEAST_READINGS = 3
LEAST_APART_PERCENT = 30.0
"""Points of utilisation: less is what ranks of one job differ by chance and by their readings' moments."""
UNUSED_PERCENT = 2.0
WORKING_PERCENT = 50.0


def find(facts: Facts) -> list[Finding]:
    """Of whole devices whose utilisation is known."""
    known = [
        d for d in facts.devices if ":" not in d.key and d.busy_percent is not None and d.busy.of >= LEAST_READINGS
    ]
    if len(known) < 2:
        return []
    least = min(known, key=lambda device: device.busy_percent or 0.0)
    most = max(known, key=lambda device: device.busy_percent or 0.0)
    low, high = least.busy_percent or 0.0, most.busy_percent or 0.0
    if high < WORKING_PERCENT or high - low < LEAST_APART_PERCENT:
        return []
    unused = [device for device in known if (device.busy_percent or 0.0) <= UNUSED_PERCENT]
    return [_unused(unused, known, most) if unused else _uneven(least, most)]


def _unused(unused: list[DeviceFacts], known: list[DeviceFacts], most: DeviceFacts) -> Finding:
    names = ", ".join(device.key for device in unused[:8]) + (" …" if len(unused) > 8 else "")
    return Finding(
        kind="uneven",
        title=f"{len(unused)} of {len(known)} devices did nothing ({names}), while device {most.key} was "
        f"{most.busy_percent:.0f} % busy",
        evidence=tuple(each for device in unused[:8] for each in evidence(device, busy_percent=device.busy_percent)),
        severity="warning",
        remedy="Train on all of them (torchrun --nproc-per-node, with the same global batch), or give them to others. "
        "Check CUDA_VISIBLE_DEVICES.",
        gain=None,
        verify="All devices that the job has must be busy.",
    )


def _uneven(least: DeviceFacts, most: DeviceFacts) -> Finding:
    return Finding(
        kind="uneven",
        title=f"Device {least.key} was {least.busy_percent:.0f} % busy, device {most.key} {most.busy_percent:.0f} %",
        evidence=(
            *evidence(least, busy_percent=least.busy_percent, busy_clock_share=least.busy_clock_share),
            *evidence(most, busy_percent=most.busy_percent, busy_clock_share=most.busy_clock_share),
        ),
        severity="info",
        remedy="If they train one job: the busier one may be a straggler or carry more (DataParallel's first device, a "
        "stage of a pipeline that is too large). A rank that waits in a collective counts as busy too.",
        gain=None,
        verify="Watch the job with `nearpeak run`: it compares its ranks.",
    )
