"""Facts about a run that was watched from inside, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearpeak.recording.process_facts import ProcessFacts

__all__ = ["EventFacts", "GrowthFacts", "PlaceFacts", "RankFacts", "ReadingFacts", "RunFacts", "WorkerFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFacts:
    """A place in the code that samples met."""

    phase: str
    frames: tuple[str, ...]
    """Innermost first: `file:line function`."""
    share: float
    """Of all samples of the training threads, 0 to 1; of a worker, of that worker's."""
    samples: int = 0
    total_ms: float | None = None
    """Time that is known and not only sampled."""


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
    per_step: dict[str, float] = field(default_factory=dict)
    """As of `RunFacts`, of this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Loader workers of all ranks together."""

    seen: int
    """Those that delivered, over the whole run: more than work at a time where they are started anew."""
    batches: int
    fetch_ms: float
    """Dataset and collator, mean per batch."""
    fetch_cpu_ms: float
    first_batch_ms: float | None = None
    """Median over the workers: from the loader's start to its first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """Events of one kind during the steps that were judged, mean over the ranks."""

    count: float
    total_ms: float | None = None
    input_ms: float | None = None
    """Waiting for input in the steps in which they happened, all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthFacts:
    """Memory over the steps that were judged."""

    memory: str
    """`device` (allocated by tensors) or `process` (resident)."""
    bytes_per_step: float
    """Slope of a straight line through the steps."""
    first_bytes: float
    last_bytes: float
    rising_share: float
    """The run of steps cut into parts: in how many the mean is above that of the part before, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingFacts:
    """Readings of one device, or of the host (device −1), while the judged steps ran."""

    device: int
    name: str | None = None
    readings: int = 0
    busy_percent: float | None = None
    memory_used_share: float | None = None
    """Largest, 0 to 1."""
    memory_total_bytes: int | None = None
    throttled_share: float | None = None
    """Of the readings, how many named a reason that slows the clock."""
    throttle_reasons: tuple[str, ...] = ()
    clock_share: float | None = None
    """Mean clock over the largest, 0 to 1."""
    running_threads: float | None = None
    disk_read_bytes_per_s: float | None = None


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

    world_size: int = 1
    per_step: dict[str, float] = field(default_factory=dict)
    """Mean per step and rank of every number that was measured in the judged steps, by its column in `StepRecord`."""
    first_steps: int = 0
    """How many were left out of the judgement as the run's beginning."""
    first_steps_extra_ms: float | None = None
    """What they took beyond as many of the later ones."""
    run_ms: float | None = None
    """All steps together."""
    straggler_ms: float | None = None
    """Per step: what the slowest rank worked longer than the ranks did on average."""
    slowest_rank: int | None = None
    """The rank that was the slowest in most steps."""
    slowest_share: float | None = None
    """In how many of the steps it was, 0 to 1."""
    workers: WorkerFacts | None = None
    events: dict[str, EventFacts] = field(default_factory=dict)
    growth: tuple[GrowthFacts, ...] = ()
    readings: tuple[ReadingFacts, ...] = ()
    loss_scale: tuple[float, float] | None = None
    """First and last that was seen."""

    @property
    def on_host(self) -> bool | None:
        """The training computes on the CPU; None if the device is not known."""
        return None if self.process.device is None else self.process.device == "cpu"
