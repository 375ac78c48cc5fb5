"""One look at a machine, for `nearpeak devices` and `nearpeak watch --once`: as JSON, and as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from nearpeak.hardware.live.sampler import Snapshot
from nearpeak.hardware.reading import FIGURES, Device, Reading

__all__ = ["GROUPS", "device_paragraphs", "figure_words", "snapshot_document"]

SCHEMA = 1
UNKNOWN = "–"
GROUPS: dict[str, tuple[str, ...]] = {
    "work": (
        "busy",
        "engine",
        "sm",
        "tensor",
        "fp",
        "integer",
        "memory_busy",
        "dram",
        "encoder",
        "decoder",
        "jpeg",
        "optical",
    ),
    "memory": ("memory", "bar1"),
    "power": ("power", "module", "energy"),
    "clock": ("clock", "performance", "throttle"),
    "temperature": ("temperature", "fan"),
    "links": ("pcie", "nvlink"),
    "health": ("ecc", "row", "page", "xid", "reset"),
    "mode": ("compute", "persistence", "mig"),
}
"""Heading → how the names of its figures begin; a figure stands under the first that fits."""


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Everything that was read; a figure that is unknown is null, and `missing` says why."""
    devices = []
    for device, reading in zip(snapshot.devices, snapshot.readings, strict=True):
        described = msgspec.to_builtins(device) | {"key": device.key}
        devices.append(described | {"reading": msgspec.to_builtins(reading)})
    return {
        "schema": SCHEMA,
        "at_ns": snapshot.at_ns,
        "sources": msgspec.to_builtins(snapshot.sources),
        "devices": devices,
        "host": msgspec.to_builtins(snapshot.host),
    }


def device_paragraphs(device: Device, reading: Reading, *, everything: bool) -> list[str]:
    """One paragraph a group of figures; with `everything` those that are unknown too, with the reason."""
    paragraphs = []
    for heading, prefixes in GROUPS.items():
        members = [name for name in FIGURES if _group_of(name) == heading]
        known = [
            f"{_plain_name(name, prefixes)} {figure_words(name, value)}" for name, value in _known(reading, members)
        ]
        if known:
            paragraphs.append(f"{heading}: {', '.join(known)}")
    if everything:
        paragraphs += _reasons(reading)
    return paragraphs


def _group_of(name: str) -> str:
    for heading in ("work", "memory"):
        if name.startswith(tuple(p for p in GROUPS[heading] if p not in ("memory", "fp"))):
            return heading
    if name == "memory_power_w":
        return "power"
    return next((heading for heading, prefixes in GROUPS.items() if name.startswith(prefixes)), "mode")


def _known(reading: Reading, names: Iterable[str]) -> list[tuple[str, Any]]:
    return [(name, value) for name in names if (value := getattr(reading, name)) is not None]


def _reasons(reading: Reading) -> list[str]:
    """Which figures are unknown, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name in FIGURES:
        why = reading.why_missing(name)
        if why is not None:
            by_reason.setdefault(why, []).append(name)
    return [f"{why.replace('_', ' ')}: {', '.join(names)}" for why, names in sorted(by_reason.items())]


UNITS = ("_bytes_per_s", "_percent", "_bytes", "_w", "_j", "_hz", "_c", "_s", "_rpm")


def _plain_name(name: str, prefixes: tuple[str, ...]) -> str:
    unit = next((unit for unit in UNITS if name.endswith(unit)), "")
    return name.removesuffix(unit).replace("_", " ")


def figure_words(name: str, value: Any) -> str:
    """A figure with its unit, as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    if isinstance(value, str):
        return value
    for unit, scale, word in (
        ("_bytes_per_s", 1e9, " GB/s"),
        ("_bytes", 1 << 30, " GiB"),
        ("_percent", 1, " %"),
        ("_w", 1, " W"),
        ("_j", 3.6e6, " kWh"),
        ("_hz", 1e6, " MHz"),
        ("_rpm", 1, " rpm"),
        ("_c", 1, " °C"),
        ("_s", 1, " s"),
    ):
        if name.endswith(unit):
            return f"{value / scale:,.4g}{word}" if scale > 1 or isinstance(value, float) else f"{value}{word}"
    return f"{value:,}"
