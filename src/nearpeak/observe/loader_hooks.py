"""Hooks of torch's loader: waiting for a batch, fetching in this process, workers that are started."""

from __future__ import annotations

import time
import weakref
from typing import Any

from nearpeak.observe.batches import BatchMeter
from nearpeak.observe.boundary import Boundary
from nearpeak.observe.facts import read_loader_facts
from nearpeak.observe.patches import Patches
from nearpeak.observe.steps import StepWatch

__all__ = ["LoaderHooks"]

MOST_LOADERS = 64
"""Whose set-up is remembered."""


class Numbers:
    """A number for each object as long as it lives: an id comes again once its object has gone."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = 0

    def of(self, each: Any) -> int:
        """Its number; a new one if it has none."""
        return self.known(each) or self.give(each, None)

    def known(self, each: Any) -> int | None:
        """Its number, if it has one."""
        entry = self._numbers.get(id(each))
        return entry[1] if entry is not None and entry[0]() is each else None

    def give(self, each: Any, number: int | None) -> int:
        """Let it have this number, or a new one."""
        if number is None:
            self._next = number = self._next + 1
        key = id(each)
        self._numbers[key] = weakref.ref(each, lambda gone: self._numbers.pop(key, None)), number
        return number

    def alive(self) -> list[Any]:
        """All that have one."""
        return [each for reference, _ in tuple(self._numbers.values()) if (each := reference()) is not None]


class LoaderHooks:
    """Between the loader's classes and the step watch. Batches fetched by threads other than the training's own, and
    by loaders inside workers, pass unseen."""

    def __init__(self, watch: StepWatch, boundary: Boundary, patches: Patches) -> None:
        self._watch, self._boundary, self._patches = watch, boundary, patches
        self._loaders, self._iterators = Numbers(), Numbers()
        self.meter = BatchMeter()
        self._facts: dict[int, dict[str, Any]] = {}

    def install(self, dataloader: Any) -> None:
        """`dataloader` is torch.utils.data.dataloader."""
        self._hook_iterator(dataloader._BaseDataLoaderIter)
        self._hook_start(dataloader.DataLoader)
        fetchers = dataloader._utils.fetch
        for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
            self._hook_fetch(fetcher)

    def facts(self) -> dict[str, Any]:
        """Of the loader whose batches are trained on, or the first: a loader may be gone while its iterator goes on."""
        trained = [number for number in self._facts if number in self._watch.training_loaders]
        return next((self._facts[number] for number in (*trained, *self._facts)), {})

    def worker_pids(self) -> list[int]:
        """Of the workers that are there."""
        workers = [worker for each in self._iterators.alive() for worker in getattr(each, "_workers", ())]
        return [worker.pid for worker in workers if worker.pid]

    def _hook_iterator(self, kind: Any) -> None:
        original = kind.__next__
        wanted = self._boundary.guard(self._wanted)
        arrived, refused = self._boundary.guard(self._arrived), self._boundary.guard(self._watch.batch_refused)

        def __next__(iterator: Any) -> Any:
            before = wanted(iterator)
            try:
                batch = original(iterator)
            except BaseException:
                if before is not None:
                    refused(before)
                raise
            if before is not None:
                arrived(iterator, batch)
            return batch

        self._patches.put(kind, "__next__", __next__)

    def _wanted(self, iterator: Any) -> int | None:
        number = self._iterators.known(iterator)
        return None if number is None else self._watch.batch_wanted(number)

    def _arrived(self, iterator: Any, batch: Any) -> None:
        number = self._iterators.known(iterator)
        if number is not None:
            self._watch.batch_arrived(number, *self.meter.measure(batch, self._watch.steps))

    def _hook_start(self, kind: Any) -> None:
        original = kind.__iter__
        begins, ends = self._boundary.guard(self._starts), self._boundary.guard(self._started)

        def __iter__(loader: Any) -> Any:
            before = begins(loader)
            began_ns = time.perf_counter_ns()
            iterator = original(loader)
            if before is not None:
                ends(loader, iterator, before, began_ns)
            return iterator

        self._patches.put(kind, "__iter__", __iter__)

    def _starts(self, loader: Any) -> int:
        number = self._loaders.of(loader)
        if number not in self._facts and len(self._facts) < MOST_LOADERS:
            self._facts[number] = read_loader_facts(loader)
        return self._watch.loader_starts(number)

    def _started(self, loader: Any, iterator: Any, before: int, began_ns: int) -> None:
        self._iterators.give(iterator, self._loaders.of(loader))
        self._watch.leave(before)
        duration_ns = time.perf_counter_ns() - began_ns
        self._watch.happened("loader_start", began_ns, duration_ns, workers=loader.num_workers)

    def _hook_fetch(self, kind: Any) -> None:
        original = kind.fetch
        fetched = self._boundary.guard(self._watch.fetched)
        now, cpu_now = time.perf_counter_ns, time.thread_time_ns

        def fetch(fetcher: Any, index: Any) -> Any:
            began_ns, cpu_ns = now(), cpu_now()
            data = original(fetcher, index)
            fetched(now() - began_ns, cpu_now() - cpu_ns)
            return data

        self._patches.put(kind, "fetch", fetch)
