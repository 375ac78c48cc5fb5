"""Figures as text: the unit that fits, three digits that matter, and "unknown" where there is no figure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nearpeak.finding import Evidence
from nearpeak.forecast import Interval

__all__ = [
    "bytes_text",
    "count_text",
    "duration_text",
    "evidence_text",
    "figure_text",
    "gain_text",
    "name_text",
    "number_text",
    "share_text",
]

UNKNOWN = "unknown"
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
LARGE_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number_text(value: float | None, digits: int = 3) -> str:
    """Three digits that matter, and all of them before the point: 0.0123, 1.23, 123, 12,345."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")  # rounded first: 9.999 is 10.0
    places = digits - 1 - int(exponent)
    if value == 0 or places <= 0:
        return f"{value:,.0f}"
    return f"{float(f'{mantissa}e{exponent}'):,.{places}f}" if places <= 8 else f"{mantissa}e{exponent}"


def count_text(value: float | None) -> str:
    """A count: in full up to 99,999, then as 1.2 M."""
    if value is None:
        return UNKNOWN
    if abs(value) < 100_000:
        return f"{value:,.0f}" if float(value).is_integer() else number_text(value)
    scale, unit = next(pair for pair in LARGE_UNITS if abs(value) >= pair[0])
    return f"{number_text(value / scale)} {unit}"


def duration_text(milliseconds: float | None) -> str:
    """From µs to hours: 850 µs, 12.5 ms, 1.23 s, 4 min 05 s, 3 h 07 min."""
    if milliseconds is None:
        return UNKNOWN
    sign, size_ms = ("−" if milliseconds < 0 else ""), abs(milliseconds)
    if size_ms == 0:
        return "0 ms"
    if size_ms < 0.9995:
        return f"{sign}{number_text(size_ms * 1e3)} µs"
    if size_ms < 999.5:
        return f"{sign}{number_text(size_ms)} ms"
    if size_ms < 119_500:
        return f"{sign}{number_text(size_ms / 1e3)} s"
    seconds = round(size_ms / 1e3)
    if seconds < 7200:
        return f"{sign}{seconds // 60} min {seconds % 60:02} s"
    return f"{sign}{seconds // 3600} h {seconds % 3600 // 60:02} min"


def bytes_text(count: float | None) -> str:
    """In powers of 1024: 512 B, 1.50 GiB."""
    if count is None:
        return UNKNOWN
    power = 0
    while abs(count) / 1024**power >= 999.5 and power < len(BYTE_UNITS) - 1:
        power += 1
    return f"{number_text(count / 1024**power)} {BYTE_UNITS[power]}"


def share_text(share: float | None) -> str:
    """A share of 1 as a percentage: 43 %, 4.3 %, 0.4 %."""
    if share is None:
        return UNKNOWN
    percent = 100 * share
    if 0 < abs(percent) < 0.05:
        return "< 0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def gain_text(gain: Interval | None) -> str:
    """What a remedy saves of the step's time: `saves 31 % (20 to 38 %)`."""
    if gain is None:
        return "gain not counted in time"
    if gain.low == gain.high:
        return f"saves {share_text(gain.likely)}"
    return f"saves {share_text(gain.likely)} ({share_text(gain.low).removesuffix(' %')} to {share_text(gain.high)})"


# -- named figures -----------------------------------------------------------------------------------------------------

_UNITS: tuple[tuple[str, str], ...] = (
    ("_per_s", "/s"),
    ("_share", "share"),
    ("_percent", " %"),
    ("_bytes", "bytes"),
    ("_ms", "ms"),
    ("_us", "us"),
    ("_ns", "ns"),
    ("_s", "s"),
    ("_c", " °C"),
    ("_w", " W"),
    ("_hz", "hz"),
)


def figure_text(name: str, value: object) -> str:
    """A figure with the unit that stands at the end of its name: ``("wait_ms", 91.2)`` → `91.2 ms`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return UNKNOWN
    if not isinstance(value, int | float):
        return str(value)
    return _with_unit(_unit_of(name)[1], value)


def name_text(name: str) -> str:
    """A name without its unit, as words: `wait_ms` → `wait`, `samples_per_s` → `samples`."""
    suffix, _ = _unit_of(name)
    return name.removesuffix(suffix).replace("_", " ") if suffix else name.replace("_", " ")


def evidence_text(evidence: Sequence[Evidence]) -> str:
    """All figures behind a finding in one line: `wait 91.2 ms, workers 0`."""
    return ", ".join(f"{name_text(each.name)} {figure_text(each.name, each.value)}" for each in evidence)


def _unit_of(name: str) -> tuple[str, str]:
    return next(((suffix, unit) for suffix, unit in _UNITS if name.endswith(suffix)), ("", ""))


def _with_unit(unit: str, value: float) -> str:
    milliseconds = {"ms": 1.0, "us": 1e-3, "ns": 1e-6, "s": 1e3}
    if unit in milliseconds:
        return duration_text(value * milliseconds[unit])
    if unit == "share":
        return share_text(value)
    if unit == "bytes":
        return bytes_text(value)
    if unit == "hz":
        return f"{number_text(value / 1e6)} MHz"
    return f"{count_text(value)}{unit}"
