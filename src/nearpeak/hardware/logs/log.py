"""`read_log`: a file that some tool kept, as devices and their readings in time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from nearpeak.errors import DataError
from nearpeak.hardware.logs.headless import take_headless
from nearpeak.hardware.logs.identify import identify
from nearpeak.hardware.logs.moments import order
from nearpeak.hardware.logs.parts import LogEvent, Parts, TextBlock
from nearpeak.hardware.logs.scan import scan
from nearpeak.hardware.logs.text import read_lines
from nearpeak.hardware.reading import Device, Reading

__all__ = ["DeviceLog", "parse_log", "read_log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLog:
    """What a log holds. Nothing that it says of a device is left out."""

    source: str
    """Its file."""
    formats: tuple[str, ...]
    """``nvidia-smi -q``, ``nvidia-smi dmon``, …: most readings first."""
    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]
    """In time."""
    events: tuple[LogEvent, ...] = ()
    texts: tuple[TextBlock, ...] = ()
    context: dict[str, str]
    """What the file says about itself: versions, host, load."""
    notes: tuple[str, ...] = ()
    """What had to be assumed in reading it, as sentences."""


def read_log(path: str | Path) -> DeviceLog:
    """Read a log of any known format; raises `DataError` if it is none."""
    file = Path(path)
    return parse_log(read_lines(file), str(path))


def parse_log(lines: list[str], source: str) -> DeviceLog:
    """The same from lines; `source` names them in messages."""
    parts = _scan(lines, source)
    if not parts.drafts and not any(event.kind == "message" for event in parts.events):
        raise DataError(
            f"{source}: no readings of devices were found. Known are: nvidia-smi (CSV with a header line, -q, -q -x, "
            "dmon, pmon, the plain table), Prometheus range queries as JSON, Grafana's CSV, rocm-smi."
        )
    return _assemble(parts, source)


def _scan(lines: list[str], source: str) -> Parts:
    from nearpeak.hardware.logs.grafana import take_grafana
    from nearpeak.hardware.logs.prometheus import take_json

    parts = Parts()
    if not take_json(lines, parts) and not take_grafana(lines, source, parts):
        scan(lines, parts)
        if not parts.drafts:
            take_headless(lines, parts)
    return parts


def _assemble(parts: Parts, source: str) -> DeviceLog:
    indices, devices = identify(parts)
    ordered, changes = order(parts, indices)
    readings = [draft.build(at_ns, index) for draft, index, at_ns in ordered]
    return DeviceLog(
        source=source,
        formats=tuple(name for name, _ in Counter(parts.formats).most_common()),
        devices=_with_other(devices, parts),
        readings=tuple(sorted(readings, key=lambda reading: (reading.at_ns, reading.device, reading.mig or -1))),
        events=(*parts.events, *changes),
        texts=tuple(parts.texts),
        context=parts.context,
        notes=tuple(parts.notes),
    )


def _with_other(devices: list[Device], parts: Parts) -> tuple[Device, ...]:
    """Add what lists say of a device."""
    said: dict[tuple[int, int | None], dict[str, str]] = {}
    for entry in parts.listed:
        said.setdefault((entry["index"], entry.get("mig")), {}).update(entry["other"])
    return tuple(
        replace(device, other={**device.other, **said.get((device.index, device.mig), {})}) for device in devices
    )
