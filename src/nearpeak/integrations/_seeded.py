"""A Trainer's data, made a function of (seed, epoch, dataset index): what a worker drew before does not matter.

transformers skips the batches that a stopped training has consumed, so that another worker reads the next one, with
other random numbers. Here each sample is fetched, and each batch collated, under its own seed. Only the loader of this
training sees the difference: the dataset, the sampler and the collator are the script's own.
"""

from __future__ import annotations

import functools
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nearpeak.train.seeding import COLLATE_STREAM, FETCH_STREAM, RandomSources, runs_code, sample_seed

__all__ = ["Clock", "SeededCollate", "SeededData", "may_draw"]

DRAW_NOTHING = {
    ("torch.utils.data._utils.collate", "default_collate"),
    ("transformers.data.data_collator", "default_data_collator"),
    ("transformers.data.data_collator", "DefaultDataCollator"),
    ("transformers.data.data_collator", "DataCollatorWithPadding"),
    ("transformers.data.data_collator", "DataCollatorForTokenClassification"),
    ("transformers.data.data_collator", "DataCollatorForSeq2Seq"),
    ("transformers.data.data_collator", "DataCollatorWithFlattening"),
}
"""Collators that we have read. All others may draw random numbers."""


class Clock:
    """Which epoch it is, also in workers that live for several; and what this process fetched last."""

    def __init__(self, epoch: int) -> None:
        self._epoch = torch.tensor([epoch]).share_memory_()
        self.fetched: list[Any] = []

    @property
    def epoch(self) -> int:
        """Counts from 0."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._epoch.fill_(value)


class SeededData(torch.utils.data.Dataset[Any]):
    """A dataset each of whose samples has its own random numbers; in everything else the dataset itself."""

    def __init__(self, data: Any, seed: int, clock: Clock) -> None:
        self.data, self.seed, self.clock = data, seed, clock
        self._runs_code, self._reads_batches = runs_code(data), _reads_batches(data)

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "data" not in vars(self):  # while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.data, name)

    def __getitem__(self, index: Any) -> Any:
        self.clock.fetched = [index]
        return self._fetch([functools.partial(operator.getitem, self.data, index)], [[index]])[0]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        self.clock.fetched = list(indices)
        if self._reads_batches:
            return self._fetch([functools.partial(self.data.__getitems__, indices)], [indices])[0]
        calls = [functools.partial(operator.getitem, self.data, index) for index in indices]
        return self._fetch(calls, [[index] for index in indices])

    def _fetch(self, calls: Sequence[Callable[[], Any]], drawn: Sequence[Sequence[Any]]) -> list[Any]:
        if not self._runs_code:
            return [call() for call in calls]
        seeds = [_seed_of(indices, self.seed, self.clock.epoch, FETCH_STREAM) for indices in drawn]
        return _under_seeds(self.data, calls, seeds)


class SeededCollate:
    """A collator whose random numbers depend on the samples of its batch only."""

    def __init__(self, collate: Callable[[Any], Any], seed: int, clock: Clock) -> None:
        self.collate, self.seed, self.clock = collate, seed, clock

    def __call__(self, samples: Any) -> Any:
        seed = _seed_of(self.clock.fetched, self.seed, self.clock.epoch, COLLATE_STREAM)
        return _under_seeds(_owner_of(self.collate), [functools.partial(self.collate, samples)], [seed])[0]


def may_draw(collate: Any) -> bool:
    """Whether a collator may draw random numbers, as far as we have read."""
    own = _own_collator(collate)
    kind = own if hasattr(own, "__qualname__") else type(own)
    return (kind.__module__, kind.__qualname__) not in DRAW_NOTHING


def _own_collator(collate: Any) -> Any:
    """The script's collator, without what transformers puts around it to remove columns."""
    return collate.data_collator if type(collate).__name__ == "RemoveColumnsCollator" else collate


def _owner_of(collate: Any) -> Any:
    own = _own_collator(collate)
    return getattr(own, "__self__", own)


def _reads_batches(data: Any) -> bool:
    """Whether a batch is fetched in one call, as the script's own loader does: a transform may look at all of it."""
    if type(data) is torch.utils.data.Subset:
        return _reads_batches(data.dataset)
    return callable(getattr(data, "__getitems__", None))


def _under_seeds(owner: Any, calls: Sequence[Callable[[], Any]], seeds: Sequence[int]) -> list[Any]:
    """Run each call under its seed and leave every generator as it was."""
    sources = RandomSources(owner)
    with sources.preserved():
        results = _results(sources, calls, seeds)
    made_some = RandomSources(owner)
    if len(made_some) == len(sources):
        return results
    with made_some.preserved():  # a generator of its own, made at the first call: it was not seeded yet
        return _results(made_some, calls, seeds)


def _results(sources: RandomSources, calls: Sequence[Callable[[], Any]], seeds: Sequence[int]) -> list[Any]:
    results = []
    for call, seed in zip(calls, seeds, strict=True):
        sources.seed(seed)
        results.append(call())
    return results


def _seed_of(indices: Sequence[Any], seed: int, epoch: int, stream: int) -> int:
    """One sample's seed, or that of a batch: all of its samples in their order."""
    return functools.reduce(lambda mixed, index: sample_seed(mixed, epoch, _number(index), stream), indices, seed)


def _number(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:  # datasets may be addressed by names or tuples
        return zlib.crc32(repr(index).encode())
