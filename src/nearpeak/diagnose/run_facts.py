"""Facts about a run that was watched from inside, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is unknown is None."""
