"""Facts about a run that was watched from inside, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearpeak.recording.process_facts import ProcessFacts

__all__ = ["PlaceFacts", "RankFacts", "RunFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFacts:
    """A place in the code that samples met."""

    phase: str
    frames: tuple[str, ...]
    """Innermost first: `file:line function`."""
    share: float
    """Of all samples of the training threads, 0 to 1; of a worker, of that worker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Medians over the steps that were judged, of one process."""

    rank: int
    process: int
    step_ms: float
    phase_ms: dict[str, float]
    """Mean over the steps, by the names of `recording.PHASES`; means, so that they sum to the mean step."""
    cpu_ms: float | None = None
    backward_cpu_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is unknown is None."""

    process: ProcessFacts
    """Of the first rank."""
    steps_seen: int
    """All, those left out of the judgement included."""
    ranks: tuple[RankFacts, ...]
    mean_step_ms: float
    phase_ms: dict[str, float]
    """Mean per step over all ranks; sums to `mean_step_ms`."""
    places: tuple[PlaceFacts, ...] = ()
    samples_per_step: float | None = None
    """Of all ranks together: the effective global batch."""
    micro_batches_per_step: float | None = None
    padded_share: float | None = None
    """Of the tokens computed, how many were padding: 0 to 1."""
    samples_per_s: float | None = None
    extra: dict[str, float] = field(default_factory=dict)
    """Further figures by name with unit, for evidence."""
