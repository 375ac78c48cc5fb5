"""Facts about a profiler's trace, beyond its breakdown."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CollectiveFacts", "KernelFacts", "TraceFacts", "TraceRank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """All runs of one kernel on all ranks."""

    name: str
    family: str
    uses_tensor_cores: bool
    number_format: str
    count: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFacts:
    """All exchanges of one kind."""

    operation: str
    count: int
    time_ns: int
    n_bytes: int | None = None
    """Of all messages; None where the trace does not give them."""
    group_size: int | None = None

    @property
    def algorithm_gb_per_s(self) -> float | None:
        """Message bytes over the time they took, waiting for others included."""
        return self.n_bytes / self.time_ns if self.n_bytes and self.time_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRank:
    """One file, or one device of one."""

    source: str
    rank: int | None
    device: int | None
    step_ms: float
    """Mean."""
    waited_ms: float | None = None
    """Per step: in exchanges, for ranks that came later."""
    cost_ms: float | None = None
    """Per step: how long all others together waited for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What is unknown is None. Shares are 0 to 1."""

    ranks: tuple[TraceRank, ...] = ()
    """In the order of `Facts.ranks`."""
    world_size: int | None = None
    is_xplane: bool = False
    """Recorded by the profiler of TensorFlow and JAX."""
    input_stage: str | None = None
    """Of the input pipeline, the stage that took most time itself, where the file tells stages apart."""
    device_name: str | None = None
    compute_capability: tuple[int, int] | None = None
    kernels: tuple[KernelFacts, ...] = ()
    """Those that took the most time first."""
    product_share: float | None = None
    """Of all kernels' time, how much multiplied matrices."""
    tensor_core_share: float | None = None
    """Of the time that multiplied matrices, how much on Tensor Cores (AMD: matrix cores)."""
    format_shares: dict[str, float] = field(default_factory=dict)
    """Of the time that multiplied matrices, by number format."""
    kernels_per_step: float | None = None
    small_kernel_share: float | None = None
    """Of the number of kernels, how many are shorter than `SMALL_KERNEL_US`."""
    launches_per_s: float | None = None
    queue_depth: float | None = None
    """Work launched and not yet begun, mean over the steps."""
    hidden_communication_share: float | None = None
    """Of the time of exchanges, how much ran beside compute."""
    exposed_copy_ns: dict[str, int] = field(default_factory=dict)
    """By route."""
    pageable_share: float | None = None
    """Of the exposed copies' time, how much went through memory that is not pinned."""
    collectives: tuple[CollectiveFacts, ...] = ()
    waiting_share: float | None = None
    """Of the steps, how much ranks waited in exchanges for later ranks, mean over ranks; None for one rank."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    critical_path: dict[str, float] = field(default_factory=dict)
    """What the steps' length hangs on, by share: compute, communication, copy, input, host, handover (queues and
    launching). Of the rank whose steps are longest."""
    host_places: tuple[tuple[str, float], ...] = ()
    """What the host was seen doing while the device waited for its work: name and share of the steps."""
