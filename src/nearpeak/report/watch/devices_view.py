"""Devices as lines: one or two each, as there is room."""

from __future__ import annotations

from nearpeak.hardware.reading import Device, Reading
from nearpeak.report.watch.history import History, main_percent
from nearpeak.report.watch.lines import (
    UNKNOWN,
    Line,
    Span,
    bar,
    fit,
    gib_text,
    level_style,
    line_text,
    percent_text,
    rate_text,
    span,
    spark,
)

__all__ = ["device_lines", "short_name"]

NARROW = 64
SHORTEST_HISTORY = 16
REASON_WORDS = {
    "power_cap": "power cap",
    "hardware_slowdown": "HW slowdown",
    "sync_boost": "sync boost",
    "thermal": "hot",
    "hardware_thermal": "too hot",
    "power_brake": "power brake",
    "application_clocks": "set clock",
}
COUNTER_WORDS = (
    ("busy", "busy_percent"),
    ("tensor", "tensor_percent"),
    ("dram", "dram_percent"),
    ("warps", "sm_occupancy_percent"),
)


def device_lines(device: Device, reading: Reading, history: History, width: int, *, detail: bool) -> list[Line]:
    """One line, and with `detail` a second one: counters, links, history."""
    if reading.state != "ok":
        return [_unreachable(device, reading, width)]
    first = _narrow(device, reading, width) if width < NARROW else _wide(device, reading, width)
    second = _detail(reading, history, width) if detail else ()
    return [first, second] if line_text(second).strip() else [first]


def short_name(device: Device) -> str:
    """``H100 80GB HBM3``: the maker's name tells nothing apart."""
    name = device.name or device.vendor or "device"
    for word in ("NVIDIA ", "GeForce ", "Quadro ", "Tesla ", "AMD Instinct "):
        name = name.removeprefix(word)
    if device.mig is not None:
        return f"  MIG {device.mig_profile or device.mig}"
    return name


def _label(device: Device, width: int) -> str:
    return f"{device.key} {short_name(device)}"[:width].ljust(width)


def _unreachable(device: Device, reading: Reading, width: int) -> Line:
    words = {"lost": "off the bus", "hung": "driver hangs", "failed": "refuses every question"}
    parts = [
        span(_label(device, min(18, width // 3)), "bold"),
        span(" "),
        span(words.get(reading.state, reading.state), "bad"),
    ]
    return fit([*parts, span(f": {reading.fault}" if reading.fault else "", "dim")], width)


def _main(reading: Reading) -> tuple[str, float | None]:
    """Its name is part of it: that some kernel ran is not that the device worked."""
    return ("busy" if reading.sm_busy_percent is None else "SM", main_percent(reading))


def memory_percent(reading: Reading) -> float | None:
    """Of its memory, in use."""
    if reading.memory_used_bytes is None or not reading.memory_total_bytes:
        return None
    return 100 * reading.memory_used_bytes / reading.memory_total_bytes


def _wide(device: Device, reading: Reading, width: int) -> Line:
    name, percent = _main(reading)
    held = memory_percent(reading)
    spare = max(0, width - 80)
    label, meter = 18 + spare // 4, 9 + spare // 4
    parts = [
        span(_label(device, label), "bold"),
        span(f" {name:>4}", "dim"),
        span(f"{percent_text(percent)} "),
        span(bar(percent, meter), "ok"),
        span(f" {gib_text(reading.memory_used_bytes)}/{gib_text(reading.memory_total_bytes).strip()}G".ljust(13)),
        span(bar(held, meter - 3), level_style(held, 90, 97)),
        *_power(reading),
        *_temperature(reading),
        *_flags(reading),
    ]
    return fit(parts, width)


def _narrow(device: Device, reading: Reading, width: int) -> Line:
    name, percent = _main(reading)
    parts = [
        span(_label(device, max(6, width - 30)), "bold"),
        span(f"{name:>5}", "dim"),
        span(percent_text(percent), "ok"),
        span(f" {gib_text(reading.memory_used_bytes, 4)}G", level_style(memory_percent(reading), 90, 97)),
        span(f"{_watts(reading.power_w):>5}W"),
        *_temperature(reading),
    ]
    return fit(parts, width)


def _watts(power_w: float | None) -> str:
    return UNKNOWN if power_w is None else f"{power_w:.0f}"


def _power(reading: Reading) -> list[Span]:
    if reading.power_w is None:
        return [span(f" {UNKNOWN:>8}", "dim")]
    limit = f"/{reading.power_limit_w:.0f}" if reading.power_limit_w else ""
    share = 100 * reading.power_w / reading.power_limit_w if reading.power_limit_w else None
    return [span(f" {_watts(reading.power_w) + limit:>7}W", "" if share is None or share < 97 else "warn")]


def _temperature(reading: Reading) -> list[Span]:
    if reading.temperature_c is None:
        return [span(f" {UNKNOWN:>3}°", "dim")]
    limit = reading.temperature_target_c or reading.temperature_slowdown_c
    near = limit is not None and reading.temperature_c >= limit - 3
    return [span(f" {reading.temperature_c:3.0f}°", "bad" if near else "")]


def _flags(reading: Reading) -> list[Span]:
    words = [REASON_WORDS.get(name, name) for name in reading.slowing or ()]
    if reading.ecc_uncorrected:
        words.append("ECC")
    if reading.xid:
        words.append(f"XID {reading.xid}")
    return [span(f" {', '.join(words)}", "warn")] if words else []


def _detail(reading: Reading, history: History, width: int) -> Line:
    """What the device's counters say, its links, and the last minute of it: as much as there is room for."""
    known = [(word, getattr(reading, name)) for word, name in COUNTER_WORDS if getattr(reading, name) is not None]
    if reading.sm_busy_percent is None:
        known = [pair for pair in known if pair[0] != "busy"]
    texts = [*(f"{word} {value:.0f}%" for word, value in known), *_links(reading)]
    most = width - SHORTEST_HISTORY - 2
    while texts and 2 + len("  ".join(texts)) > most:
        texts.pop()
    text = "  " + "  ".join(texts)
    room = min(60, width - len(text) - 2)
    drawn = spark(history.points(reading.key, room), room)
    return fit([span(text, "dim"), span(" " * (width - len(text) - len(drawn))), span(drawn, "ok")], width)


def _links(reading: Reading) -> list[str]:
    texts = []
    if reading.clock_hz is not None:
        most = f"/{reading.clock_max_hz / 1e6:.0f}" if reading.clock_max_hz else ""
        texts.append(f"{reading.clock_hz / 1e6:.0f}{most} MHz")
    if reading.pcie_generation is not None and reading.pcie_width is not None:
        texts.append(f"PCIe {reading.pcie_generation}×{reading.pcie_width}")
    if reading.pcie_received_bytes_per_s is not None:
        texts.append(f"↓{rate_text(reading.pcie_received_bytes_per_s)}")
    if reading.nvlink_received_bytes_per_s is not None:
        texts.append(f"NVLink {rate_text(reading.nvlink_received_bytes_per_s)}")
    return texts
