"""Facts about a profiler's trace, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TraceFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What is unknown is None."""
