"""`Finding`: one thing that costs a run time or makes it fail, what to do about it, and what that would bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearpeak.errors import SettingError
from nearpeak.forecast import Interval

__all__ = ["KINDS", "SEVERITIES", "Evidence", "Finding", "ranked"]

KINDS: dict[str, str] = {
    "input": "the step waits for its data",
    "host_work": "the device waits for Python between kernels or steps",
    "copy": "copies between host and device that nothing hides",
    "launch": "kernels so short that launching them takes longer",
    "sync": "the host waits for the device where it need not",
    "communication": "exchange between ranks that nothing hides",
    "straggler": "one rank is slower, and the others wait",
    "precision": "a wider number format than the job needs",
    "underfilled": "kernels too small to fill the device",
    "padding": "work on padding, which is thrown away",
    "steps": "the total optimization steps are not what was meant",
    "loss_scale": "fp16 loss scaling loses updates",
    "optimizer": "the optimizer's update takes a needless share",
    "recompile": "compiled code is compiled again and again",
    "evaluation": "evaluation takes a needless share",
    "checkpointing": "saving takes a needless share",
    "logging": "logging holds the step up",
    "memory_pressure": "the device is nearly full: allocations are retried or smaller steps forced",
    "fragmentation": "memory is reserved but cannot be used",
    "memory_growth": "memory grows from step to step",
    "throttled": "the device lowers its clock (heat, power)",
    "link": "a slower or narrower link than the hardware has",
    "busy_not_working": "utilisation is high, throughput is not",
    "threads": "more or fewer CPU threads than help",
    "device_fault": "the device reports errors",
    "debugging": "checks meant for finding mistakes are left on",
    "startup": "the run's beginning takes long before the first usual step",
    "parallelism": "a way of using several devices that leaves much of them idle",
    "idle": "the device has nothing to do for much of the time, and the source does not show why",
    "reserved": "a device is held by processes that do not use it",
    "uneven": "devices of one machine work unequally",
    "unreadable": "a counter is not available here: unknown is not idle",
}
"""Every kind of finding and what it means. Kinds are added where needed; none is ever given another meaning."""

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure behind a finding and where it was read."""

    name: str
    """With its unit: ``wait_ms``, ``padded_share``."""
    value: float | int | str | bool
    source: str
    """Where it comes from: ``steps 10 to 109 of the recording``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, how we know, what to do, what it brings, and how to see that it did."""

    kind: str
    title: str
    evidence: tuple[Evidence, ...]
    severity: Severity
    remedy: str
    gain: Interval | None
    """Share of the step's time saved, at most 1; None where the gain is not time, or cannot be said."""
    verify: str
    """How to see whether the remedy worked."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(f"Finding(kind={self.kind!r}): must be one of {', '.join(KINDS)}.")
        if self.severity not in SEVERITIES:
            raise SettingError(f"Finding(severity={self.severity!r}): must be one of {', '.join(SEVERITIES)}.")
        if not self.evidence:
            raise SettingError(f"Finding({self.title!r}): a finding without evidence is an opinion; give at least one.")
        if self.gain is not None and self.gain.high > 1:
            raise SettingError(
                f"Finding({self.title!r}, gain={self.gain}): no more than all (1.0) of a step can be saved."
            )
        for name in ("title", "remedy", "verify"):
            if not getattr(self, name).strip():
                raise SettingError(f"Finding(kind={self.kind!r}): {name} is empty.")


def ranked(findings: list[Finding]) -> list[Finding]:
    """Most severe first, and within a severity by likely gain; findings without a gain come last of their severity."""

    def rank(finding: Finding) -> tuple[int, float]:
        return -SEVERITIES.index(finding.severity), -finding.gain.likely if finding.gain else float("inf")

    return sorted(findings, key=rank)
