"""The sample stream: which dataset index stands at which position, as a pure function of (seed, epoch, position).

Nothing here holds state that a restart, another number of ranks or another micro-batching could disturb: window k is
the same samples whenever and wherever it is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from nearpeak.job import Job, Window, count_steps, job_steps, sample_count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SampleOrder", "epoch_permutation", "order_of"]


@lru_cache(maxsize=4)
def epoch_permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The shuffled dataset indices of one epoch. Philox is counter-based: a key gives the same stream anywhere."""
    import numpy as np

    key = np.random.SeedSequence(entropy=seed, spawn_key=(epoch,)).generate_state(2, np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    permutation = generator.permutation(np.arange(samples, dtype=np.int64))
    permutation.flags.writeable = False
    return permutation


class SampleOrder:
    """Windows of a map-style dataset."""

    def __init__(
        self, samples: int, global_batch: int, *, seed: int = 0, order: str = "shuffled", remainder: str = "short"
    ):
        count_steps(samples, global_batch, 1, remainder)  # type: ignore[arg-type]  # refuses what leaves no window
        self.samples, self.global_batch = samples, global_batch
        self.seed, self.order, self.remainder = seed, order, remainder

    @property
    def positions_per_epoch(self) -> int:
        """Stream positions that one epoch occupies; `drop` leaves the last incomplete window's samples out."""
        if self.remainder == "drop":
            return self.samples // self.global_batch * self.global_batch
        return self.samples

    def window(self, index: int, end: int | None = None) -> Window:
        """Window `index`; `end` cuts the stream (the last window of a carried job may be short)."""
        first, size = self._span(index, end)
        epochs = tuple((first + offset) // self.positions_per_epoch for offset in range(size))
        indices = tuple(self.sample_at(first + offset) for offset in range(size))
        return Window(index=index, epoch=epochs[0], indices=indices, epochs=epochs, first_position=first)

    def sample_at(self, position: int) -> int:
        """The dataset index at a stream position."""
        epoch, offset = divmod(position, self.positions_per_epoch)
        return offset if self.order == "sequential" else int(epoch_permutation(self.samples, self.seed, epoch)[offset])

    def _span(self, index: int, end: int | None) -> tuple[int, int]:
        if self.remainder == "carry":
            first = index * self.global_batch
            return first, self.global_batch if end is None else min(self.global_batch, max(1, end - first))
        windows_per_epoch = -(-self.positions_per_epoch // self.global_batch)
        epoch, offset = divmod(index, windows_per_epoch)
        size = min(self.global_batch, self.positions_per_epoch - offset * self.global_batch)
        return epoch * self.positions_per_epoch + offset * self.global_batch, size


def order_of(job: Job) -> SampleOrder | None:
    """The order of a job's map-style data; None for data that can only be iterated."""
    samples = sample_count(job.data)
    if samples is None:
        return None
    return SampleOrder(samples, job.global_batch, seed=job.seed, order=job.order, remainder=job.remainder)


def stream_end(job: Job) -> int | None:
    """Where a carried job's stream ends (its last window may be short); None where windows end by themselves."""
    samples = sample_count(job.data)
    if job.remainder != "carry" or job.epochs is None or samples is None:
        return None
    job_steps(job)
    return round(job.epochs * samples)
