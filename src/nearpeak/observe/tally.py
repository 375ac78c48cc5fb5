"""`Tally`: what one step adds up to, in plain numbers; turned into a row later, on another thread."""

from __future__ import annotations

from typing import Any

from nearpeak.observe.phases import NAMES
from nearpeak.recording.schema import StepRecord

__all__ = ["Tally", "to_row"]

MS = 1e-6


class Tally:
    """Counters of the step that runs. Mutable and slotted: the training thread makes one a step."""

    __slots__ = (
        "allocated_bytes",
        "backward_cpu_ns",
        "collect_ns",
        "collections",
        "compilations",
        "compile_ns",
        "copied_bytes",
        "copies",
        "cpu_ns",
        "device_ms",
        "ended_ns",
        "exchanges",
        "fetch_cpu_ns",
        "fetch_ns",
        "index",
        "loss",
        "loss_scale",
        "main_cpu_ns",
        "micro_batches",
        "padded_tokens",
        "pageable_bytes",
        "peak_bytes",
        "reserved_bytes",
        "rss_bytes",
        "samples",
        "skipped_updates",
        "spent",
        "starved",
        "sync_ns",
        "syncs",
        "tokens",
        "tokens_known",
        "updates",
        "wall_ns",
    )

    def __init__(self) -> None:
        self.index = 0
        self.ended_ns = 0
        self.wall_ns = 0
        self.spent: list[int] = []
        self.micro_batches = self.updates = self.samples = 0
        self.tokens: int | None = None
        self.padded_tokens: int | None = None
        self.tokens_known = True
        self.syncs = self.sync_ns = 0
        self.copies = self.copied_bytes = self.pageable_bytes = 0
        self.backward_cpu_ns = self.cpu_ns = self.main_cpu_ns = 0
        self.exchanges: int | None = None
        self.fetch_ns: int | None = None
        self.fetch_cpu_ns = 0
        self.collections = self.collect_ns = 0
        self.compilations = self.compile_ns = 0
        self.loss: Any = None
        self.loss_scale: float | None = None
        self.skipped_updates: int | None = None
        self.rss_bytes: int | None = None
        self.allocated_bytes: int | None = None
        self.reserved_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.device_ms: dict[str, float] | None = None
        self.starved: tuple[int, int] | None = None
        """Phase boundaries that found the device idle, and all."""


def to_row(tally: Tally, process: int, *, read_bytes: int | None, worker_cpu_ms: float | None) -> StepRecord:
    """The row of one step; `read_bytes` and `worker_cpu_ms` are its share of what was read over several."""
    starved = tally.starved
    spans: dict[str, Any] = {f"{name}_ms": spent * MS for name, spent in zip(NAMES, tally.spent, strict=True)}
    spans |= {f"device_{name}_ms": value for name, value in (tally.device_ms or {}).items()}
    return StepRecord(
        process=process,
        step=tally.index,
        ended_ns=tally.ended_ns,
        loss=tally.loss,
        samples=tally.samples or None,
        tokens=tally.tokens,
        padded_tokens=tally.padded_tokens,
        micro_batches=tally.micro_batches,
        wall_s=tally.wall_ns * 1e-9,
        **spans,
        starved_share=None if starved is None or not starved[1] else starved[0] / starved[1],
        syncs=tally.syncs,
        sync_ms=tally.sync_ns * MS,
        cpu_ms=tally.cpu_ns * MS,
        main_cpu_ms=tally.main_cpu_ns * MS,
        backward_cpu_ms=tally.backward_cpu_ns * MS,
        exchanges=tally.exchanges,
        fetch_ms=None if tally.fetch_ns is None else tally.fetch_ns * MS,
        fetch_cpu_ms=None if tally.fetch_ns is None else tally.fetch_cpu_ns * MS,
        copies=tally.copies,
        copied_bytes=tally.copied_bytes,
        pageable_bytes=tally.pageable_bytes,
        loss_scale=tally.loss_scale,
        skipped_updates=tally.skipped_updates,
        compilations=tally.compilations,
        compile_ms=tally.compile_ns * MS,
        collections=tally.collections,
        collect_ms=tally.collect_ns * MS,
        allocated_bytes=tally.allocated_bytes,
        reserved_bytes=tally.reserved_bytes,
        peak_bytes=tally.peak_bytes,
        rss_bytes=tally.rss_bytes,
        read_bytes=read_bytes,
        worker_cpu_ms=worker_cpu_ms,
    )
