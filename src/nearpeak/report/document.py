"""A diagnosis as the JSON document that every verb prints. Names stay; new ones may be added."""

from __future__ import annotations

from typing import Any

from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.diagnose.gains import step_after
from nearpeak.finding import Finding
from nearpeak.forecast import Interval

__all__ = ["SCHEMA", "diagnosis_document", "finding_document", "interval_document", "to_json"]

SCHEMA = 1


def diagnosis_document(diagnosis: Diagnosis, *, source: str | None = None, **more: Any) -> dict[str, Any]:
    """What was seen, as plain values. `source` is what was looked at, as the user named it; `more` comes behind."""
    facts = diagnosis.facts
    return {
        "schema": SCHEMA,
        "source": facts.source if source is None else source,
        "steps": facts.steps,
        "step_ms": facts.step_ms,
        "breakdown": _breakdown(facts.breakdown),
        "ranks": [_breakdown(each) for each in facts.ranks],
        "findings": [_with_step(each, facts.step_ms) for each in diagnosis.findings],
        "folded": [_with_step(each, facts.step_ms) for each in diagnosis.folded],
        "unknown": list(diagnosis.unknown),
        **({"devices": [device_document(each) for each in facts.devices]} if facts.devices else {}),
        **more,
    }


def device_document(device: DeviceFacts) -> dict[str, Any]:
    """What readings say of a device over the time that was watched; shares are 0 to 1, unknown is None."""
    return {
        "device": device.key,
        "name": device.name,
        "readings": device.readings,
        "span_s": device.span_s,
        "busy_percent": device.busy_percent,
        "idle_share": device.idle.share if device.idle.of else None,
        "memory_used_bytes": device.memory_used_bytes,
        "memory_used_share": device.memory_used_share,
        "power_w": device.power_w,
        "power_limit_w": device.power_limit_w,
        "throttled": {reason: share.share for reason, share in device.throttled.items()},
        "throttled_s": device.throttled_s,
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """One finding as plain values; its gain is the share of step time saved, None where it is not counted in time."""
    return {
        "kind": finding.kind,
        "title": finding.title,
        "severity": finding.severity,
        "evidence": [{"name": each.name, "value": each.value, "source": each.source} for each in finding.evidence],
        "remedy": finding.remedy,
        "gain": interval_document(finding.gain),
        "verify": finding.verify,
    }


def _with_step(finding: Finding, step_ms: float | None) -> dict[str, Any]:
    """The finding and how long a step would take without it; None where either is not known."""
    after = None if finding.gain is None or step_ms is None else step_after(step_ms, finding.gain)
    return {**finding_document(finding), "predicted_step_ms": interval_document(after)}


def interval_document(interval: Interval | None) -> dict[str, float] | None:
    """Low, likely and high; None stays None."""
    return None if interval is None else {"low": interval.low, "likely": interval.likely, "high": interval.high}


def to_json(document: dict[str, Any]) -> str:
    """As text, indented; what is not a number (NaN) is null, since JSON has no word for it."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _breakdown(breakdown: Breakdown | None) -> dict[str, Any] | None:
    return None if breakdown is None else breakdown.as_percentages()
