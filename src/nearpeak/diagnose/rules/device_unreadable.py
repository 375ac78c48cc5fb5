"""A utilisation that is not available, as of cards cut into MIG instances, while the card works."""

from __future__ import annotations

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence
from nearpeak.finding import Finding

__all__ = ["find"]


def find(facts: Facts) -> list[Finding]:
    """Many monitors show such a card as idle."""
    return [_blind(device) for device in facts.devices if device.blind.count]


def _blind(device: DeviceFacts) -> Finding:
    cut = device.mig_enabled is True
    does = f"draws {device.blind_power_w:.0f} W" if device.blind_power_w is not None else "has processes"
    return Finding(
        kind="unreadable",
        title=f"{device.label} gives no utilisation{' (MIG is on)' if cut else ''}, yet {does}: it is not idle",
        evidence=evidence(
            device,
            power_w=device.blind_power_w,
            power_limit_w=device.power_limit_w,
            readings_like_this=device.blind.count,
            readings_without_utilisation=device.blind.of,
            mig_enabled=device.mig_enabled,
            processes=device.processes,
        ),
        severity="info",
        remedy="Read its instances: performance counters (GPM, Hopper and later) with `nearpeak watch`, or DCGM's "
        "profiling fields; power and memory tell the rest. Never take N/A for 0."
        if cut
        else "Judge it by power, clocks and memory; this driver or device has no utilisation. Never take N/A for 0.",
        gain=None,
        verify="`nearpeak devices` names every figure that the device has, and why others are missing.",
    )
