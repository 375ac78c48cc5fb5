"""A device that runs below its clock: for how much of the time, and why."""

from __future__ import annotations

from typing import NamedTuple

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence, percent
from nearpeak.finding import Finding, Severity
from nearpeak.forecast import Interval

__all__ = ["find"]

LEAST_SHARE = 0.01
"""Of the time: clocks change now and then, and a change counts as a slowdown."""
LEAST_COUNTED_S = 1.0
MOST_AT_LIMIT = 0.5
"""Of the readings near the power limit, where the driver gives no reasons."""
LEAST_READINGS = 3
MUCH = 0.2
FAR_FROM_LIMIT = 0.85
"""Of the power limit: a device that is held at it reads above."""


class Cause(NamedTuple):
    """One class of reasons and what to do about it."""

    reasons: tuple[str, ...]
    why: str
    remedy: str
    severity: Severity


CAUSES = (
    Cause(
        ("hardware_thermal", "thermal"),
        "heat",
        "Cool it: free the air's way, raise the fan curve, check neighbours that blow into it, re-paste an old card; "
        "until then lock a lower clock (nvidia-smi -lgc), which is steadier than being throttled.",
        "warning",
    ),
    Cause(
        ("power_brake",),
        "the power supply's brake signal",
        "The rack or supply asks the device for less: check the supply, its cables and the rack's power limit.",
        "critical",
    ),
    Cause(
        ("power_cap",),
        "its power limit",
        "Normal for a device that is used to the full. If the limit was set below the default, raise it (nvidia-smi "
        "-pl); a lower clock for memory-bound work costs little.",
        "info",
    ),
    Cause(
        ("hardware_slowdown",),
        "a slowdown of the hardware",
        "Check temperature and power supply: the hardware halves the clock to protect itself.",
        "warning",
    ),
    Cause(
        ("application_clocks",),
        "clocks set for applications",
        "Somebody set a lower clock: reset it with nvidia-smi -rac (or -rgc).",
        "info",
    ),
    Cause(
        ("sync_boost",),
        "the clock of another device of its group",
        "Take it out of the boost group, or see why the other device is slow.",
        "info",
    ),
)


def find(facts: Facts) -> list[Finding]:
    """One finding a device and class of reasons."""
    found: list[Finding] = []
    for device in facts.devices:
        shares = [(cause, _share(device, cause)) for cause in CAUSES]
        told = {cause.reasons for cause, share in shares if share >= LEAST_SHARE}
        for cause, share in shares:
            # The hardware's slowdown is the umbrella of its heat and of the brake.
            covered = cause.reasons == ("hardware_slowdown",) and told & {CAUSES[0].reasons, CAUSES[1].reasons}
            if share >= LEAST_SHARE and not covered:
                found.append(_throttled(device, cause, share))
        if not device.throttled and not device.throttled_s:
            found += _at_limit(device)
    return found


def _share(device: DeviceFacts, cause: Cause) -> float:
    """The larger of what readings met and what the driver's counters counted."""
    met = max((device.throttled[reason].share for reason in cause.reasons if reason in device.throttled), default=0.0)
    return max(met, _counted(device, cause) / device.counted_s if device.counted_s else 0.0)


def _counted(device: DeviceFacts, cause: Cause) -> float:
    """Seconds by the driver's counters; their moments are not exact, so that the sum may pass the time watched."""
    if not device.counted_s or device.counted_s < LEAST_COUNTED_S:
        return 0.0
    return min(device.counted_s, max((device.throttled_s.get(reason, 0.0) for reason in cause.reasons), default=0.0))


def _throttled(device: DeviceFacts, cause: Cause, share: float) -> Finding:
    limit, default = device.power_limit_w, device.power_limit_default_w
    lowered = limit is not None and default is not None and limit < default
    severity: Severity = "warning" if cause.severity == "info" and share >= MUCH and lowered else cause.severity
    met = {f"{reason}_share": device.throttled[reason].share for reason in cause.reasons if reason in device.throttled}
    counted = {f"{reason}_s": device.throttled_s[reason] for reason in cause.reasons if reason in device.throttled_s}
    return Finding(
        kind="throttled",
        title=_title(device, cause, share),
        evidence=evidence(
            device,
            throttled_share=share,
            **met,
            **counted,
            counted_over_s=device.counted_s if counted else None,
            clock_share_while_throttled=device.throttled_clock_share,
            temperature_c=device.throttled_temperature_c,
            most_power_share=device.most_power_share,
            power_limit_w=device.power_limit_w,
            power_limit_default_w=device.power_limit_default_w,
        ),
        severity=severity,
        remedy=cause.remedy,
        gain=_gain(device, share),
        verify="The share of throttled readings must fall and the mean clock rise.",
    )


def _title(device: DeviceFacts, cause: Cause, share: float) -> str:
    """A power limit that no reading came near is told as what it is: the driver's word against the figures."""
    most = device.most_power_share
    if "power_cap" in cause.reasons and most is not None and most < FAR_FROM_LIMIT and not _met(device, cause):
        return (
            f"{device.label}: its driver counts {percent(share)} of the time as held back by the power limit, "
            f"though no reading drew more than {percent(most)} of it"
        )
    return f"{device.label} ran at a lowered clock for {percent(share)} of the time: {cause.why}"


def _met(device: DeviceFacts, cause: Cause) -> bool:
    return any(device.throttled[reason].count for reason in cause.reasons if reason in device.throttled)


def _gain(device: DeviceFacts, share: float) -> Interval | None:
    """At most what the missing clock would bring in this time; nothing where memory or the host is the limit."""
    if device.throttled_clock_share is None:
        return None
    high = min(0.95, share * max(0.0, 1 - device.throttled_clock_share))
    return Interval(0.0, high / 2, high)


def _at_limit(device: DeviceFacts) -> list[Finding]:
    near = device.at_power_limit
    if device.rated_power_w is not None or near.count < LEAST_READINGS or near.share < MOST_AT_LIMIT:
        return []  # a limit that nobody read may be another one
    return [
        Finding(
            kind="throttled",
            title=f"{device.label} is at its power limit in {percent(near.share)} of the readings",
            evidence=evidence(
                device,
                at_power_limit_share=near.share,
                power_limit_w=device.power_limit_w,
                power_limit_default_w=device.power_limit_default_w,
                busy_clock_share=device.busy_clock_share,
            ),
            severity="info",
            remedy=CAUSES[2].remedy,
            gain=None,
            verify="Log clocks_event_reasons.active too: it says whether the limit lowers the clock.",
        )
    ]
