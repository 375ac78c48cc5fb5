"""The sample stream: which dataset index stands where, as a pure function of (seed, epoch, offset).

Nothing here holds state that a restart, another number of ranks or another micro-batching could disturb: window k is
the same samples whenever and wherever it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from nearpeak.job import Job, Window, count_steps, sample_count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Origin", "SampleOrder", "epoch_permutation", "order_of", "steps_from", "stream_end"]


@lru_cache(maxsize=4)
def epoch_permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The shuffled dataset indices of one epoch. Philox is counter-based: a key gives the same stream anywhere."""
    import numpy as np

    key = np.random.SeedSequence(entropy=seed, spawn_key=(epoch,)).generate_state(2, np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    permutation = generator.permutation(np.arange(samples, dtype=np.int64))
    permutation.flags.writeable = False
    return permutation


@dataclass(frozen=True, slots=True)
class Origin:
    """Where windows are counted from: optimizer step `step` begins at sample `offset` of `epoch`.

    Anything but the default means that the global batch was changed at that step: the windows before were others.
    """

    step: int = 0
    epoch: int = 0
    offset: int = 0


class SampleOrder:
    """Windows of a map-style dataset. A position is epoch · samples + offset."""

    def __init__(
        self,
        samples: int,
        global_batch: int,
        *,
        seed: int = 0,
        order: str = "shuffled",
        remainder: str = "short",
        origin: Origin | None = None,
    ):
        count_steps(samples, global_batch, 1, remainder)  # type: ignore[arg-type]  # refuses what leaves no window
        self.samples, self.global_batch = samples, global_batch
        self.seed, self.order, self.remainder = seed, order, remainder
        self.origin = origin or Origin()

    def window(self, index: int, end: int | None = None) -> Window:
        """Window `index`; `end` cuts the stream (the last window of a carried job may be short)."""
        first = self.position_of(index)
        places = [divmod(first + i, self.samples) for i in range(self._size(first, end))]
        indices = tuple(self.sample_at(epoch, offset) for epoch, offset in places)
        epochs = tuple(epoch for epoch, _ in places)
        return Window(index=index, epoch=epochs[0], indices=indices, epochs=epochs, first_position=first)

    def sample_at(self, epoch: int, offset: int) -> int:
        """The dataset index at an offset of an epoch."""
        return offset if self.order == "sequential" else int(epoch_permutation(self.samples, self.seed, epoch)[offset])

    def position_of(self, index: int) -> int:
        """Where window `index` begins."""
        start, ahead = self.origin, index - self.origin.step
        if self.remainder == "carry":
            return start.epoch * self.samples + start.offset + ahead * self.global_batch
        in_first_epoch = self.windows_in(self.samples - start.offset)
        if ahead < in_first_epoch:
            return start.epoch * self.samples + start.offset + ahead * self.global_batch
        epochs, window = divmod(ahead - in_first_epoch, self.windows_in(self.samples))
        return (start.epoch + 1 + epochs) * self.samples + window * self.global_batch

    def windows_in(self, samples: int) -> int:
        """Windows that so many samples at the end of an epoch make."""
        return samples // self.global_batch if self.remainder == "drop" else -(-samples // self.global_batch)

    def _size(self, first: int, end: int | None) -> int:
        if self.remainder == "carry":
            return self.global_batch if end is None else min(self.global_batch, max(1, end - first))
        return min(self.global_batch, self.samples - first % self.samples)


def order_of(job: Job, origin: Origin | None = None) -> SampleOrder | None:
    """The order of a job's map-style data; None for data that can only be iterated."""
    samples = sample_count(job.data)
    if samples is None:
        return None
    return SampleOrder(
        samples, job.global_batch, seed=job.seed, order=job.order, remainder=job.remainder, origin=origin
    )


def stream_end(job: Job) -> int | None:
    """Where a carried job's stream ends (its last window may be short); None where windows end by themselves."""
    samples = sample_count(job.data)
    if job.remainder != "carry" or job.epochs is None or samples is None:
        return None
    return round(job.epochs * samples)


def steps_from(job: Job, order: SampleOrder) -> int:
    """Optimizer steps of a job by epochs whose windows are counted from another origin than the start."""
    assert job.epochs is not None
    end, step = round(job.epochs * order.samples), order.origin.step
    while order.position_of(step) < end:
        step += 1
    return step
