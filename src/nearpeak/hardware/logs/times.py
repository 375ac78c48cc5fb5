"""When a line of a log was written. Logs that name no zone are taken as UTC: only their differences are used."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = ["NS", "find_date_time", "parse_time"]

NS = 10**9
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}

_YEAR_FIRST = re.compile(
    r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*"
    r"(Z|UTC|[+-]\d{2}:?\d{2})?$"
)
_COMPACT = re.compile(r"^(\d{4})(\d{2})(\d{2})[T ]+(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?$")
_YEAR_LAST = re.compile(
    r"^(\d{1,2})([-/.])(\d{1,2})[-/.](\d{4})[T ,]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?$"
)
_NAMED = re.compile(
    r"^(?:[A-Za-z]{3,9},?\s+)?([A-Za-z]{3})[a-z]*\.?\s+(\d{1,2})\s+(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?\s+"
    r"(?:[A-Z]{2,5}\s+)?(\d{4})$"
)
_TIME = re.compile(r"^(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?$")
_EPOCH = re.compile(r"^\d{9,19}(?:\.\d{1,9})?$")


@lru_cache(maxsize=4096)
def parse_time(text: str, *, day_first: bool = False) -> int | None:
    """Unix nanoseconds, or None if this is no date with time. A time of day alone counts from 1970-01-01."""
    stripped = text.strip().strip('"')
    try:
        return _from_numbers(stripped, day_first) or _from_names(stripped) or _from_epoch(stripped)
    except (ValueError, OverflowError):  # the 31st of February, the year 0
        return None


def find_date_time(text: str) -> int | None:
    """A line that is nothing but a date with time, as nvidia-smi prints above its table."""
    stripped = text.strip()
    return parse_time(stripped) if 10 <= len(stripped) <= 40 and ":" in stripped else None


def _from_numbers(text: str, day_first: bool) -> int | None:
    if match := _YEAR_FIRST.match(text):
        return _build(match.group(1, 2, 3), match.group(4, 5, 6), match[7], match[8])
    if match := _COMPACT.match(text):
        return _build(match.group(1, 2, 3), match.group(4, 5, 6), match[7])
    if match := _YEAR_LAST.match(text):
        return _from_year_last(match, day_first)
    if match := _TIME.match(text):
        return _build(("1970", "1", "1"), match.group(1, 2, 3), match[4])
    return None


def _from_year_last(match: re.Match[str], day_first: bool) -> int | None:
    """With points the day comes first; with slashes the month does, unless it cannot, or the caller knows better."""
    first, second = int(match[1]), int(match[3])
    if match[2] == "." or first > 12 or (day_first and second <= 12):
        first, second = second, first
    hour = int(match[5])
    if match[9]:
        hour = hour % 12 + (12 if match[9].lower() == "pm" else 0)
    return _build((match[4], str(first), str(second)), (str(hour), match[6], match[7]), match[8])


def _from_names(text: str) -> int | None:
    match = _NAMED.match(text)
    month = _MONTHS.get(match[1].lower()) if match else None
    if match is None or month is None:
        return None
    return _build((match[7], str(month), match[2]), match.group(3, 4, 5), match[6])


def _from_epoch(text: str) -> int | None:
    """Seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by their number of digits."""
    if not _EPOCH.match(text):
        return None
    whole, _, fraction = text.partition(".")
    unit = {9: NS, 10: NS, 12: 10**6, 13: 10**6, 15: 10**3, 16: 10**3}.get(len(whole), 1 if len(whole) >= 18 else 0)
    return int(whole) * unit + int(fraction.ljust(9, "0")) * unit // NS or None


def _build(
    date: tuple[str | None, ...], clock: tuple[str | None, ...], fraction: str | None, zone: str | None = None
) -> int:
    year, month, day = (int(part or 0) for part in date)
    hour, minute, second = (int(part or 0) for part in clock)
    moment = datetime(year, month, day, tzinfo=UTC) + timedelta(hours=hour, minutes=minute, seconds=min(second, 59))
    if hour > 24 or minute > 59:
        raise ValueError(f"{hour}:{minute}")
    if zone and zone not in ("Z", "UTC"):
        sign, digits = zone[0], zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        moment += -offset if sign == "+" else offset
    return int(moment.timestamp()) * NS + int((fraction or "").ljust(9, "0"))
