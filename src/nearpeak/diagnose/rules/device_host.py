"""One core that is full, and a device that waits for it."""

from __future__ import annotations

from nearpeak.diagnose.device_facts import DeviceFacts, HostFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence, percent, possible_gain
from nearpeak.finding import Evidence, Finding

__all__ = ["find"]

LEAST_SHARE = 0.5
"""Of the readings of the host."""
LEAST_READINGS = 5
BUSY_ENOUGH_PERCENT = 70.0
"""A device that is busier has little to wait for."""
WORKS_PERCENT = 5.0
"""A device that is less busy is fed by nobody."""


def find(facts: Facts) -> list[Finding]:
    """Python feeds a device from one thread; where that core is full and others are free, it is the limit."""
    host = facts.host
    if facts.run is not None:  # its own rules know which of the host's work it is
        return []
    if host is None or host.one_core.of < LEAST_READINGS or host.one_core.share < LEAST_SHARE:
        return []
    waiting = [d for d in facts.devices if WORKS_PERCENT < (d.busy_percent or 0.0) < BUSY_ENOUGH_PERCENT]
    return [_fed_by_one(device, host) for device in waiting[:1]]


def _fed_by_one(device: DeviceFacts, host: HostFacts) -> Finding:
    busy = device.busy_percent or 0.0
    source = f"{host.readings} readings of the host"
    return Finding(
        kind="host_work",
        title=f"One core is full in {percent(host.one_core.share)} of the readings, the others are not, and "
        f"{device.label} is {busy:.0f} % busy: one thread feeds it",
        evidence=(
            Evidence("one_core_full_share", round(host.one_core.share, 4), source),
            Evidence("cpu_percent", round(host.cpu_percent or 0.0, 1), source),
            *evidence(device, busy_percent=busy),
        ),
        severity="warning",
        remedy="Take work off that thread: loader workers for reading and augmenting, torch.compile or CUDA graphs for "
        "launching, fewer .item() and prints. `nearpeak run COMMAND` says which of them it is.",
        gain=possible_gain(1 - busy / 100),
        verify="The device's utilisation must rise.",
    )
