"""Devices that report errors of memory, that ask for a reset, or that are gone."""

from __future__ import annotations

from typing import NamedTuple

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence
from nearpeak.finding import Finding, Severity

__all__ = ["find"]

MANY_CORRECTED = 1000
"""In the time that was watched: corrected errors cost nothing, many of them announce worse."""
USER_XIDS = {13, 31, 43, 45}
"""Of NVIDIA's list: an error of the program (an address out of bounds, a kernel that was ended), not of the device."""
FATAL_XIDS = {48, 63, 64, 74, 79, 92, 94, 95, 119, 120}
"""Memory that cannot be corrected, NVLink, off the bus, firmware that does not answer."""


class Trouble(NamedTuple):
    """One figure that is above zero, and what it means."""

    figure: str
    severity: Severity
    says: str
    remedy: str


RESET = "Drain the machine and reset the device (nvidia-smi --gpu-reset), or reboot."
SERVICE = "Take the device out of use and have it replaced: results computed on it may be wrong."
TROUBLES = (
    Trouble("row_remap_failed", "critical", "could not replace a broken row of its memory", SERVICE),
    Trouble("ecc_uncorrected", "critical", "lost data to memory errors since the driver was loaded",
            f"{SERVICE} First: {RESET}"),
    Trouble("row_remap_pending", "warning", "will replace a broken row of its memory at the next reset", RESET),
    Trouble("page_retirement_pending", "warning", "will take a broken page out of use at the next reset", RESET),
    Trouble("reset_needed", "warning", "asks for a reset or reboot", RESET),
    Trouble("rows_remapped_uncorrected", "info", "has replaced rows of its memory after errors that lost data",
            "Nothing now; watch whether it becomes more: spare rows are few."),
    Trouble("ecc_uncorrected_lifetime", "info", "has lost data to memory errors in its life",
            "Nothing now; a device on which this grows is to be replaced."),
    Trouble("pages_retired", "info", "has taken pages of its memory out of use",
            "Nothing now; at about 60 pages the maker takes it back."),
)  # fmt: skip
COVERED = {"ecc_uncorrected_lifetime": "ecc_uncorrected", "rows_remapped_uncorrected": "ecc_uncorrected"}
"""Said already where the other is."""


def find(facts: Facts) -> list[Finding]:
    """Most severe first, of each device."""
    found: list[Finding] = []
    for device in facts.devices:
        if device.lost.count:
            found.append(_lost(device))
        found += _xid(device)
        raised = [trouble for trouble in TROUBLES if device.last.get(trouble.figure)]
        names = {trouble.figure for trouble in raised}
        found += [_report(device, each) for each in raised if COVERED.get(each.figure) not in names]
        if device.grown.get("ecc_corrected", 0) >= MANY_CORRECTED:
            found.append(_corrected(device))
    return found


def _lost(device: DeviceFacts) -> Finding:
    return Finding(
        kind="device_fault",
        title=f"{device.label} was lost: {device.fault or 'its driver does not reach it'}",
        evidence=evidence(device, lost_readings=device.lost.count, readings=device.readings, fault=device.fault),
        severity="critical",
        remedy="Look for Xid messages in the kernel's log (dmesg), reboot, and check power cables, riser and "
        "temperature; if it comes again, have it replaced.",
        gain=None,
        verify="`nearpeak devices` must list it without a fault.",
    )


def _xid(device: DeviceFacts) -> list[Finding]:
    code = int(device.last.get("xid", 0))
    if not code:
        return []
    severity: Severity = "critical" if code in FATAL_XIDS else "warning"
    whose = "a mistake of the program, mostly" if code in USER_XIDS else "see NVIDIA's list"
    return [
        Finding(
            kind="device_fault",
            title=f"{device.label} reported error Xid {code}",
            evidence=evidence(device, xid=code, events=device.last.get("xid_events")),
            severity=severity,
            remedy=f"The number says what happened ({whose}: docs.nvidia.com/deploy/xid-errors). The kernel's log "
            "(dmesg) has the process and address.",
            gain=None,
            verify="No new Xid while the job runs again.",
        )
    ]


def _report(device: DeviceFacts, trouble: Trouble) -> Finding:
    value = device.last[trouble.figure]
    return Finding(
        kind="device_fault",
        title=f"{device.label} {trouble.says}",
        evidence=evidence(device, **{trouble.figure: int(value), "grown": device.grown.get(trouble.figure)}),
        severity=trouble.severity,
        remedy=trouble.remedy,
        gain=None,
        verify="`nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT` must show no new ones.",
    )


def _corrected(device: DeviceFacts) -> Finding:
    return Finding(
        kind="device_fault",
        title=f"{device.label} corrects memory errors all the time",
        evidence=evidence(device, ecc_corrected_grown=device.grown["ecc_corrected"], span_s=device.span_s),
        severity="warning",
        remedy="No result is wrong yet. Plan its replacement: many corrected errors go before those that are not.",
        gain=None,
        verify="The counter must slow down after a reset.",
    )
