"""Where windows come from: a dataset that is indexed, or a stream that is only iterated.

A source is read by one process at a time: `read(window, refs)` gives this rank's samples of a window, each fetched
under its own random seed. It is copied into each worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from nearpeak.errors import DataError
from nearpeak.job import Remainder, sample_count
from nearpeak.train.seeding import OPEN_STREAM, RandomSources, SampleRef, fetch_seeded, sample_seed

__all__ = ["IterableSource", "MapSource", "WindowSource", "is_iterable"]

Share = Callable[[int, list[Any]], Sequence[int]]
"""Which samples of window k (all of them, given) this rank keeps, as positions in the list."""


class WindowSource(Protocol):
    """What a `WindowLoader` reads."""

    data: Any
    most_workers: int | None
    """Above this many workers the order could not be kept; None means any number."""

    def refs(self, window: int) -> Sequence[SampleRef] | None:
        """This rank's samples of a window, called in the training process; None where only reading tells."""
        ...

    def read(self, window: int, refs: Sequence[SampleRef] | None, seed: int) -> tuple[list[Any], list[SampleRef]]:
        """The samples of a window and their refs, called where the samples are fetched."""
        ...


def is_iterable(data: Any) -> bool:
    """Whether data can only be iterated: it has no usable `[]` and `len()`."""
    return isinstance(data, torch.utils.data.IterableDataset) or sample_count(data) is None


class MapSource:
    """Windows of a dataset with `[]`; `refs_of_window` must be a pure function of the window's index."""

    most_workers: int | None = None

    def __init__(self, data: Any, refs_of_window: Callable[[int], Sequence[SampleRef]]) -> None:
        self.data = data
        self._refs_of_window = refs_of_window

    def refs(self, window: int) -> Sequence[SampleRef]:
        return self._refs_of_window(window)

    def read(self, window: int, refs: Sequence[SampleRef] | None, seed: int) -> tuple[list[Any], list[SampleRef]]:
        assert refs is not None
        return fetch_seeded(self.data, refs, seed), list(refs)

    def __getstate__(self) -> dict[str, Any]:
        """Workers are told their refs: the function that makes them need not travel."""
        return {**self.__dict__, "_refs_of_window": None}


class IterableSource:
    """Windows of a stream: consecutive runs of `global_batch` samples.

    Every rank reads the whole stream and keeps what `share` gives it, so the stream must be the same on all ranks. A
    stream that ends is iterated again as the next epoch (after `set_epoch`, if it has one); `remainder` says what
    happens to an epoch's last, incomplete window. A ref's index is the sample's place in its epoch.
    """

    def __init__(
        self, data: Any, global_batch: int, share: Share | None = None, *, remainder: Remainder = "short"
    ) -> None:
        self.data = data
        self._global_batch = global_batch
        self._share = share
        # Workers start a stream anew and skip; an iterator has no beginning to go back to.
        self.most_workers: int | None = 0 if isinstance(data, Iterator) else 1
        self._remainder = remainder
        self._windows: Iterator[list[tuple[Any, SampleRef]]] | None = None
        self._next_window = 0

    def refs(self, window: int) -> None:
        return None

    def read(self, window: int, refs: Sequence[SampleRef] | None, seed: int) -> tuple[list[Any], list[SampleRef]]:
        """Skips to the window by reading and dropping those before it, which is slow and exact."""
        if self._windows is None or window < self._next_window:
            self._check_can_start_anew(window)
            self._windows, self._next_window = self._read_windows(seed), 0
        rows: list[tuple[Any, SampleRef]] = []
        while self._next_window <= window:
            rows = next(self._windows)
            self._next_window += 1
        samples = [sample for sample, _ in rows]
        kept = range(len(rows)) if self._share is None else self._share(window, samples)
        return [samples[place] for place in kept], [rows[place][1] for place in kept]

    def _check_can_start_anew(self, window: int) -> None:
        if self._windows is not None and isinstance(self.data, Iterator):
            raise DataError(
                f"window {window} of an iterator ({type(self.data).__name__}) was read already, and an iterator cannot "
                "go back. Give data whose __iter__ starts anew."
            )

    def _read_windows(self, seed: int) -> Iterator[list[tuple[Any, SampleRef]]]:
        rows: list[tuple[Any, SampleRef]] = []
        position = epoch = 0
        while True:
            windows_before = position
            for index, sample in enumerate(self._read_epoch(epoch, seed)):
                rows.append((sample, (index, epoch, position + len(rows))))
                if len(rows) == self._global_batch:
                    yield rows
                    position, rows = position + len(rows), []
            if rows and self._remainder == "short":
                yield rows
                position, rows = position + len(rows), []
            elif rows and self._remainder == "drop":
                self._check_not_all_dropped(position == windows_before, len(rows))
                rows = []
            epoch += 1

    def _read_epoch(self, epoch: int, seed: int) -> Iterator[Any]:
        """One epoch; the random numbers of sample i are seeded just before it is asked for."""
        sources = RandomSources(self.data)
        sources.seed(sample_seed(seed, epoch, 0, OPEN_STREAM))
        set_epoch = getattr(self.data, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        with _as_in_training_process():
            stream = iter(self.data)
        index = 0
        while True:
            sources.seed(sample_seed(seed, epoch, index))
            try:
                with _as_in_training_process():
                    sample = next(stream)
            except StopIteration:
                break
            except Exception as error:
                raise DataError(
                    f"sample {index} of epoch {epoch} of the stream could not be read: {type(error).__name__}: {error}"
                ) from error
            yield sample
            index += 1
        if index == 0:
            raise DataError(self._empty_message(epoch))

    def _empty_message(self, epoch: int) -> str:
        name = type(self.data).__name__
        if epoch == 0:
            return f"the stream ({name}) yields no sample at all."
        return (
            f"the stream ({name}) yields nothing in epoch {epoch}: it can be iterated only once, and the job needs "
            "more samples. Give data whose __iter__ starts anew, or fewer optimizer_steps."
        )

    def _check_not_all_dropped(self, all_dropped: bool, samples: int) -> None:
        if all_dropped:
            raise DataError(
                f"remainder='drop' with {samples} samples an epoch and global_batch={self._global_batch} leaves no "
                "window at all: lower global_batch or use remainder='short'."
            )

    def __getstate__(self) -> dict[str, Any]:
        """A worker reads the stream from its start: an open iterator cannot travel."""
        return {**self.__dict__, "_windows": None, "_next_window": 0}


@contextlib.contextmanager
def _as_in_training_process() -> Iterator[None]:
    """Hide from a stream that a worker reads it: `datasets` shuffles otherwise there than in the training process."""
    from torch.utils.data._utils import worker

    info, worker._worker_info = worker._worker_info, None
    try:
        yield
    finally:
        worker._worker_info = info
