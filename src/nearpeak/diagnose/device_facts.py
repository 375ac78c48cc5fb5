"""Facts about one device over the time that was watched, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What is unknown is None."""
