"""One cell of a log: a number with its unit, a state, or a phrase that says why there is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from nearpeak.hardware.reading import Why

__all__ = ["Cell", "parse_cell", "to_flag"]

_MISSING: tuple[tuple[str, Why], ...] = (
    ("not supported", "unsupported"),
    ("not available", "unsupported"),
    ("deprecated", "unsupported"),
    ("function not found", "unsupported"),
    ("not found", "unsupported"),
    ("insufficient permission", "no_permission"),
    ("no permission", "no_permission"),
    ("permission", "no_permission"),
    ("gpu is lost", "lost"),
    ("gpu requires reset", "lost"),
    ("fallen off the bus", "lost"),
    ("reset required", "lost"),
    ("timeout", "timeout"),
    ("unknown error", "error"),
    ("not ready", "not_yet"),
)
_ABSENT = {"", "-", "--", "n/a", "na", "nan", "null", "unknown", "undefined", "not applicable"}
_NUMBER = re.compile(r"^([+-]?(?:\d[\d ']*)?(?:[.,]?\d[\d.,]*)?(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?$")

_FACTORS: dict[str, tuple[str, float]] = {
    # Written unit → what it measures, factor to the SI unit.
    "%": ("percent", 1),
    "percent": ("percent", 1),
    "w": ("watt", 1),
    "mw": ("watt", 1e-3),
    "kw": ("watt", 1e3),
    "j": ("joule", 1),
    "mj": ("joule", 1e-3),
    "kj": ("joule", 1e3),
    "b": ("byte", 1),
    "byte": ("byte", 1),
    "bytes": ("byte", 1),
    "kib": ("byte", 2**10),
    "mib": ("byte", 2**20),
    "gib": ("byte", 2**30),
    "tib": ("byte", 2**40),
    # nvidia-smi of the older kind writes MB and means MiB; so do dmon and pmon.
    "kb": ("byte", 2**10),
    "mb": ("byte", 2**20),
    "gb": ("byte", 2**30),
    "hz": ("hertz", 1),
    "khz": ("hertz", 1e3),
    "mhz": ("hertz", 1e6),
    "ghz": ("hertz", 1e9),
    "c": ("celsius", 1),
    "°c": ("celsius", 1),
    "celsius": ("celsius", 1),
    "ns": ("second", 1e-9),
    "us": ("second", 1e-6),
    "µs": ("second", 1e-6),
    "ms": ("second", 1e-3),
    "s": ("second", 1),
    "b/s": ("byte/s", 1),
    "kb/s": ("byte/s", 1e3),
    "kib/s": ("byte/s", 2**10),
    "mb/s": ("byte/s", 1e6),
    "mib/s": ("byte/s", 2**20),
    "gb/s": ("byte/s", 1e9),
    "gib/s": ("byte/s", 2**30),
    "x": ("lanes", 1),
    "rpm": ("rpm", 1),
    "bank(s)": ("banks", 1),
}
_FLAGS = {
    "active": True,
    "enabled": True,
    "yes": True,
    "on": True,
    "true": True,
    "1": True,
    "not active": False,
    "inactive": False,
    "disabled": False,
    "no": False,
    "off": False,
    "false": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell says."""

    text: str
    """As written, without brackets and blanks around it."""
    number: float | None = None
    """As written, in its unit."""
    si: float | None = None
    """In the SI unit of what it measures; the number itself where no unit is known."""
    quantity: str | None = None
    """What its unit measures; None for a bare number."""
    missing: Why | None = None
    """Why there is no value."""


@lru_cache(maxsize=65536)
def parse_cell(text: str, unit: str | None = None, *, decimal_comma: bool = False) -> Cell:
    """Read a cell; `unit` holds where the cell itself names none (from a header, or by the field)."""
    stripped = text.strip().strip('"').strip()
    bare = stripped[1:-1].strip() if stripped.startswith("[") and stripped.endswith("]") else stripped
    why = _why_missing(bare)
    if why is not None:
        return Cell(bare, missing=why)
    number, written = _split_number(bare, decimal_comma)
    if number is None:
        return Cell(bare)
    quantity, factor = _FACTORS.get((written or unit or "").strip().lower(), (None, 1))
    if written and quantity is None:  # "16 bank(s) of 20", "3 links": a text that begins with a number
        return Cell(bare, number=number)
    return Cell(bare, number=number, si=number * factor, quantity=quantity)


def to_flag(cell: Cell) -> bool | None:
    """A state that is on or off."""
    return _FLAGS.get(cell.text.lower())


def _why_missing(text: str) -> Why | None:
    lowered = text.lower()
    if lowered in _ABSENT:
        return "unsupported"
    if lowered.startswith("err!") or lowered == "error":
        return "error"
    if lowered[:1].isdigit():
        return None
    return next((why for phrase, why in _MISSING if phrase in lowered), None)


def _split_number(text: str, decimal_comma: bool) -> tuple[float | None, str | None]:
    """The number at the beginning and the unit behind it."""
    match = _NUMBER.match(text)
    if match is None or not match[1] or not any(letter.isdigit() for letter in match[1]):
        return None, None
    if text[:2].lower() == "0x":
        return None, None
    return _to_float(match[1], decimal_comma), match[2]


def _to_float(digits: str, decimal_comma: bool) -> float | None:
    """`1,234.5`, `1.234,5`, `33,09`: the last separator is the decimal one, unless it can only separate thousands."""
    plain = digits.replace(" ", "").replace("'", "")
    comma, point = plain.rfind(","), plain.rfind(".")
    if comma >= 0 and (comma > point if point >= 0 else decimal_comma or not _is_thousands(plain)):
        plain = plain.replace(".", "").replace(",", ".")
    else:
        plain = plain.replace(",", "")
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None


def _is_thousands(digits: str) -> bool:
    return re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", digits) is not None
