"""`Reason`: why an automatic choice was made. Every function that chooses returns one beside its choice."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Reason"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One automatic choice and what it rests on."""

    choice: str
    """What was chosen, as setting=value: ``micro_batching=packed``."""
    because: str
    """One sentence that a user understands."""
    evidence: dict[str, float | int | str | bool] = field(default_factory=dict)
    """The numbers behind it, units in their names."""

    def __str__(self) -> str:
        return f"{self.choice}: {self.because}"
