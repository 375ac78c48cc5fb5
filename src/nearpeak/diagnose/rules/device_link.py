"""A host link that is narrower or slower under load than device and slot can be, or that makes errors."""

from __future__ import annotations

from nearpeak.diagnose.device_facts import DeviceFacts
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rules._devices import evidence, percent
from nearpeak.finding import Finding

__all__ = ["find"]

LEAST_SHARE = 0.2
"""Of the readings under load: links change their speed within moments when work begins."""
MANY_REPLAYS = 100
"""While it was watched: single packets are sent again on sound links too."""


def find(facts: Facts) -> list[Finding]:
    """Idle devices lower their links to save power; only readings under load count."""
    found: list[Finding] = []
    for device in facts.devices:
        if device.narrow.share >= LEAST_SHARE:
            found.append(_narrow(device))
        if device.slow.share >= LEAST_SHARE:
            found.append(_slow(device))
        if (device.pcie_replays or 0) >= MANY_REPLAYS or device.nvlink_errors:
            found.append(_errors(device))
    return found


def _narrow(device: DeviceFacts) -> Finding:
    return Finding(
        kind="link",
        title=f"{device.label} uses {device.pcie_width} of {device.pcie_width_max} PCIe lanes under load",
        evidence=evidence(
            device,
            pcie_width=device.pcie_width,
            pcie_width_max=device.pcie_width_max,
            readings_under_load=device.narrow.of,
            narrow_share=device.narrow.share,
        ),
        severity="warning",
        remedy="Reseat the card, check riser and slot (another device may share its lanes), and the BIOS's "
        "bifurcation. It costs where data goes over the link: copies from the host, exchange between devices "
        "without NVLink.",
        gain=None,
        verify="pcie.link.width.current must equal pcie.link.width.max under load.",
    )


def _slow(device: DeviceFacts) -> Finding:
    return Finding(
        kind="link",
        title=f"{device.label} runs its PCIe link at generation {device.pcie_generation} of "
        f"{device.pcie_generation_max} under load",
        evidence=evidence(
            device,
            pcie_generation=device.pcie_generation,
            pcie_generation_max=device.pcie_generation_max,
            readings_under_load=device.slow.of,
            slow_share=device.slow.share,
        ),
        severity="warning",
        remedy="Check the slot's setting in the BIOS, riser cables, and PCIe power saving (ASPM); errors make a link "
        "fall back.",
        gain=None,
        verify="pcie.link.gen.current must equal pcie.link.gen.max under load.",
    )


def _errors(device: DeviceFacts) -> Finding:
    over = f" in {device.span_s:.0f} s" if device.span_s else ""
    what = f"{device.pcie_replays} packets over PCIe" if device.pcie_replays else "data over NVLink"
    return Finding(
        kind="link",
        title=f"{device.label} had to send {what} again{over}",
        evidence=evidence(
            device, pcie_replays=device.pcie_replays, nvlink_errors=device.nvlink_errors, span_s=device.span_s
        ),
        severity="warning",
        remedy="Reseat the card or bridge and check riser cables: errors slow a link down and end in its loss.",
        gain=None,
        verify=f"The counters must stand still; now {percent(device.busy.share)} of the readings were busy.",
    )
