"""`Reading`: one figure that the user read from a real card, by which a prediction is narrowed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearpeak.errors import SettingError

__all__ = ["Reading", "parse_reading", "parse_size"]

UNITS = {"": 1, "B": 1, "KB": 1_000, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
SIZE = re.compile(r"\s*([\d_,]*\.?\d+)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a card held during the same training, and what of it the allocator does not explain."""

    used_bytes: int
    beside_bytes: int
    """Used, less what the allocator was predicted to reserve then."""


def parse_size(text: str) -> int:
    """Bytes of ``8123MiB``, ``24 GB`` or ``17179869184``.

    >>> parse_size("2 GiB")
    2147483648
    """
    match = SIZE.fullmatch(text)
    if match is None or match.group(2).upper() not in UNITS:
        raise SettingError(f"{text!r}: must be a size such as 8123MiB or 24GB.")
    return round(float(match.group(1).replace(",", "").replace("_", "")) * UNITS[match.group(2).upper()])


def parse_reading(text: str) -> tuple[int, int | None]:
    """(bytes used, batch it was read at or None) of ``used=8123MiB`` or ``used=8123MiB,batch=16``."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        fields[name.strip()] = value
    if set(fields) - {"used", "batch"} or "used" not in fields or not fields.get("batch", "1").isdigit():
        raise SettingError(f"calibrate {text!r}: must be used=SIZE or used=SIZE,batch=N, as in used=8123MiB,batch=16.")
    return parse_size(fields["used"]), int(fields["batch"]) if "batch" in fields else None
