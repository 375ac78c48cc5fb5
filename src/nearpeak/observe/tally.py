"""`Tally`: what one step adds up to, in plain numbers; turned into a row later, on another thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearpeak.observe.phases import NAMES
from nearpeak.recording.schema import StepRecord

__all__ = ["Tally", "to_row"]

MS = 1e-6


class Tally:
    """Counters of the step that runs. Mutable, and zero until counted: the training thread makes one a step, and sets
    few of them."""

    index = 0
    ended_ns = wall_ns = 0
    spent: Sequence[int] = ()
    micro_batches = updates = samples = 0
    tokens: int | None = None
    padded_tokens: int | None = None
    tokens_known = padded_tokens_known = True
    """Of all its batches so far."""
    syncs = sync_ns = 0
    copies = copied_bytes = pageable_bytes = 0
    cpu_ns = main_cpu_ns = 0
    backward_cpu_ns: int | None = None
    exchanges: int | None = None
    fetch_ns: int | None = None
    fetch_cpu_ns = 0
    collections = collect_ns = 0
    compilations = compile_ns = 0
    loss: Any = None
    loss_scale: float | None = None
    skipped_updates: int | None = None
    rss_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    device_ms: dict[str, float] | None = None
    starved: tuple[int, int] | None = None
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
        backward_cpu_ms=None if tally.backward_cpu_ns is None else tally.backward_cpu_ns * MS,
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
