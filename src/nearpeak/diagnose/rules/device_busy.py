"""Utilisation that says full, and work that is not."""

from __future__ import annotations

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence, percent
from nearpeak.finding import Finding, Severity

__all__ = ["find"]

LEAST_READINGS = 3
LEAST_BUSY_SHARE = 0.3
"""Of the readings: a device that is full now and then is judged by the rules about idling."""
LOW_SM_PERCENT = 35.0
"""Of the multiprocessors, on average, while some kernel runs all the time: kernels too small for the device."""
LOW_POWER_SHARE = 0.4
"""Of the limit. Training by matrix products draws 60 % and more, kernels that wait for memory about half."""
OFTEN = 0.5


def find(facts: Facts) -> list[Finding]:
    """Utilisation counts time in which some kernel ran, however little of the chip it used."""
    found: list[Finding] = []
    for device in facts.devices:
        if device.empty_busy.count:
            found.append(_empty(device))
        if device.busy.count - device.empty_busy.count >= LEAST_READINGS and device.busy.share >= LEAST_BUSY_SHARE:
            found += _weak(device)
    return found


def _empty(device: DeviceFacts) -> Finding:
    shown = device.empty_busy_percent or 0.0
    severity: Severity = "warning" if device.empty_busy.share >= OFTEN and device.empty_busy.count > 3 else "info"
    off = device.persistence is False
    why = (
        "Persistence mode is off: each query may start the driver up, and the start shows as full load. Turn it on "
        "(nvidia-smi -pm 1). "
        if off
        else ""
    )
    return Finding(
        kind="busy_not_working",
        title=f"{device.label} reads {shown:.0f} % utilisation with nothing on it: the figure is no work",
        evidence=evidence(
            device,
            busy_percent=shown,
            memory_used_bytes=device.empty_busy_bytes,
            readings_like_this=device.empty_busy.count,
            readings_compared=device.empty_busy.of,
            persistence=device.persistence,
        ),
        severity=severity,
        remedy=f"Do not schedule or bill by this figure. {why}It also looks back up to a second, and outlives a job "
        "that has just ended: take memory and processes into account, as `nearpeak watch` does.",
        gain=None,
        verify="Read again after some seconds: utilisation must be 0 while memory and processes are.",
    )


def _weak(device: DeviceFacts) -> list[Finding]:
    """By performance counters where they are; else by power."""
    sm, power = device.busy_sm_percent, device.busy_power_share
    if sm is not None:
        low, shown = sm < LOW_SM_PERCENT, f"only {sm:.0f} % of its multiprocessors have work"
    elif power is not None:
        whole = "power limit" if device.rated_power_w is None else "rated power"
        low, shown = power < LOW_POWER_SHARE, f"it draws only {percent(power)} of its {whole}"
    else:
        return []
    if not low:
        return []
    return [
        Finding(
            kind="busy_not_working",
            title=f"{device.label} is 90 % utilised or more, yet {shown}",
            evidence=evidence(
                device,
                busy_readings=device.busy.count,
                busy_sm_percent=sm,
                busy_power_share=power,
                rated_power_w=device.rated_power_w,
                busy_clock_share=device.busy_clock_share,
                busy_tensor_percent=device.busy_tensor_percent,
            ),
            severity="warning",
            remedy="Utilisation says that some kernel ran, not how much of the chip it filled. Give each kernel more: "
            "a larger micro-batch, fused kernels (torch.compile), fewer and larger launches; a process that spins in a "
            "collective while it waits for a peer looks the same.",
            gain=None,
            verify="Power and multiprocessors with work must rise, and the time of a step fall.",
        )
    ]
