"""`WindowLoader`: the prepared windows of a job, in order, whatever the workers.

    source = MapSource(dataset, refs_of_window)          # or IterableSource(stream, global_batch, share)
    with WindowLoader(source, prepare, first=0, last=steps, settings=plan.loader, seed=job.seed) as loader:
        for prepared in loader:
            loader.last_timing                             # fetch_ms, wait_ms, workers
            loader.set_workers(4)                          # at any moment

`prepare(samples, refs)` runs where the samples are fetched (in the worker, if there are any) and gets this rank's
samples of one window. Workers come in generations: `set_workers` stops the cursor of the present generation, whose
windows in flight drain in order while the next generation already prefetches the windows after them.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from nearpeak.errors import DataError, NearpeakError, SettingError
from nearpeak.plan import LoaderSettings
from nearpeak.reason import Reason
from nearpeak.train.parcels import pack, unpack
from nearpeak.train.processes import WorkerLimits
from nearpeak.train.seeding import RandomSources, SampleRef, own_generators, take_notes
from nearpeak.train.sources import IterableSource, MapSource, WindowSource, is_iterable

__all__ = [
    "IterableSource",
    "MapSource",
    "WindowLoader",
    "WindowSource",
    "WindowTiming",
    "is_iterable",
]

Prepare = Callable[[list[Any], list[SampleRef]], Any]


@dataclass(frozen=True, slots=True)
class WindowTiming:
    """What one window took."""

    fetch_ms: float
    """Fetching and preparing it, in whichever process did."""
    wait_ms: float
    """How long the training process waited for it."""
    fetch_cpu_ms: float
    """CPU time of fetching and preparing; far less than `fetch_ms` where it waits for a disk or network."""
    workers: int
    """The workers of the generation that prepared it; just after `set_workers` that is still the old number."""


class _Task(NamedTuple):
    window: int
    refs: Sequence[SampleRef] | None


class _Done(NamedTuple):
    value: Any
    fetch_ms: float
    fetch_cpu_ms: float
    notes: list[Reason]


class _Failed(NamedTuple):
    """An error on its way home: its message, its kind if it is one of ours, and its traceback as text."""

    message: str
    kind: type[NearpeakError]
    trace: str


class _WorkerTraceback(Exception):
    """Where in the worker it happened; shown as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Preparer:
    """Does tasks, in the training process or in a worker. It is the dataset that the `DataLoader` sees."""

    def __init__(self, source: WindowSource, prepare: Prepare, seed: int) -> None:
        self._source = source
        self._prepare = prepare
        self._seed = seed

    @property
    def data(self) -> Any:
        return self._source.data

    def for_workers(self) -> _Preparer:
        """A copy that shares no open iterator with this process."""
        return _Preparer(copy.copy(self._source), self._prepare, self._seed)

    def do(self, task: _Task) -> Any:
        samples, refs = self._source.read(task.window, task.refs, self._seed)
        return self._prepare(samples, refs)

    def __getitem__(self, task: _Task) -> _Parcel | _Failed:
        watch = _Watch()
        try:
            content = pack(self.do(task))
        except Exception as error:  # noqa: BLE001 - it is raised again in the training process, with the window's name
            return _failure(task.window, error)
        return _Parcel(content, watch)


class _Watch:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def wall_ms(self) -> float:
        return (time.perf_counter() - self._wall) * 1e3

    def cpu_ms(self) -> float:
        return (time.thread_time() - self._cpu) * 1e3


class _Parcel:
    """A packed result. With a GPU the `DataLoader`'s own thread calls `pin_memory`, off the training thread."""

    def __init__(self, content: bytes, watch: _Watch) -> None:
        self._content = content
        self._rest = (watch.wall_ms(), watch.cpu_ms(), take_notes())

    def open(self) -> _Done:
        return _Done(unpack(self._content), *self._rest)

    def pin_memory(self) -> _Done | _Failed:
        try:
            return _pinned(self.open())
        except (OSError, EOFError) as error:  # shared memory is handed over by the worker itself, if it lives
            return _Failed(str(_death(error)), DataError, "".join(traceback.format_exception(error)))


def _pinned(done: _Done) -> _Done:
    from torch.utils.data._utils.pin_memory import pin_memory

    return done._replace(value=pin_memory(done.value))


def _failure(window: int, error: Exception) -> _Failed:
    kind = type(error) if isinstance(error, NearpeakError) else DataError
    said = str(error) if isinstance(error, NearpeakError) else f"{type(error).__name__}: {error}"
    return _Failed(f"window {window}: {said}", kind, "".join(traceback.format_exception(error)))


class _Cursor:
    """The next window to hand out; shared by all generations, so that each window goes to exactly one."""

    def __init__(self, source: WindowSource, first: int, last: int) -> None:
        self._source = source
        self._next = first
        self._last = last

    def take(self) -> _Task:
        if self._next >= self._last:
            raise StopIteration
        window = self._next
        task = _Task(window, self._source.refs(window))
        self._next += 1
        return task


class _Feed:
    """One generation's access to the cursor, until it is closed. It is the sampler that the `DataLoader` sees."""

    def __init__(self, cursor: _Cursor) -> None:
        self._cursor = cursor
        self.open = True

    def __iter__(self) -> Iterator[_Task]:
        return self

    def __next__(self) -> _Task:
        if not self.open:
            raise StopIteration
        return self._cursor.take()


class _Inline:
    """The generation without workers: prepares each window when it is asked for."""

    workers = 0

    def __init__(self, feed: _Feed, preparer: _Preparer, pin: bool) -> None:
        self.feed = feed
        self._preparer = preparer
        self._pin = pin

    def __next__(self) -> _Done:
        task = next(self.feed)
        watch = _Watch()
        with RandomSources(self._preparer.data).preserved():
            value = self._do(task)
        done = _Done(value, watch.wall_ms(), watch.cpu_ms(), take_notes())
        return _pinned(done) if self._pin else done

    def _do(self, task: _Task) -> Any:
        try:
            return self._preparer.do(task)
        except Exception as error:
            failed = _failure(task.window, error)
            raise failed.kind(failed.message) from error

    def close(self) -> None:
        self.feed.open = False


class _Crew:
    """A generation of worker processes."""

    def __init__(self, feed: _Feed, preparer: _Preparer, workers: int, settings: LoaderSettings, method: str) -> None:
        self.feed = feed
        self.workers = workers
        with _without_warnings():
            self._results = iter(self._loader(feed, preparer, settings, method))

    def _loader(self, feed: _Feed, preparer: _Preparer, settings: LoaderSettings, method: str) -> DataLoader[Any]:
        return DataLoader(
            preparer,  # type: ignore[arg-type]
            batch_size=None,
            sampler=feed,  # type: ignore[arg-type]
            num_workers=self.workers,
            prefetch_factor=settings.prefetch_windows,
            collate_fn=_as_it_is,
            worker_init_fn=_leave_if_orphaned,
            pin_memory=settings.pin_memory and torch.cuda.is_available(),
            multiprocessing_context=method,
            generator=torch.Generator(),  # the default would draw from the training process's random numbers
        )

    def __next__(self) -> _Done:
        try:
            result = next(self._results)
        except RuntimeError as error:
            if not _is_death(error):
                raise
            raise _death(error) from error
        if isinstance(result, _Failed):
            raise result.kind(result.message) from _WorkerTraceback(result.trace)
        return self._open(result) if isinstance(result, _Parcel) else result

    def _open(self, parcel: _Parcel) -> _Done:
        try:
            return parcel.open()
        except (OSError, EOFError) as error:
            raise _death(error) from error

    def close(self) -> None:
        self.feed.open = False
        shut_down = getattr(self._results, "_shutdown_workers", None)  # what torch itself does when it is collected
        if shut_down is not None:
            shut_down()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """torch warns of more workers than cores, Python 3.12 of forks beside threads: both are considered. `tokenizers`
    warns at a fork unless its threads are switched off, as they should be in a worker, which inherits the variable."""
    switch = "TOKENIZERS_PARALLELISM"
    is_set = switch in os.environ or "tokenizers" not in sys.modules
    if not is_set:
        os.environ[switch] = "false"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if not is_set:
            del os.environ[switch]


def _as_it_is(value: Any) -> Any:
    return value


def _leave_if_orphaned(_worker: int) -> None:
    """torch's own watch compares the parent with the one it found when the worker began: if the training was killed
    before that, the worker takes its foster parent for the training and waits for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    # After a fork, workers hold the writing ends of each other's sentinels, so these say nothing.
    forked = isinstance(multiprocessing.current_process(), ForkProcess)
    if os.getppid() != parent.pid if forked else not parent.is_alive():
        os._exit(1)


def _is_death(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


def _death(error: Exception) -> DataError:
    return DataError(
        f"a loader worker died ({str(error).strip().rstrip('.')}). If the system was short of memory, it kills the "
        "largest process: lower loader.workers or loader.prefetch_windows, or free shared memory (/dev/shm; in Docker "
        "--shm-size). If a library used by the dataset crashed, loader.workers=0 shows where."
    )


class WindowLoader:
    """Yields what `prepare` makes of windows first, first+1, …, last-1 of a source; once."""

    def __init__(
        self,
        source: WindowSource,
        prepare: Prepare,
        *,
        first: int = 0,
        last: int,
        settings: LoaderSettings,
        seed: int,
        start_method: str | None = None,
    ) -> None:
        if not 0 <= first <= last:
            raise SettingError(f"WindowLoader(first={first}, last={last}): 0 ≤ first ≤ last must hold.")
        self.reasons: list[Reason] = []
        self.last_timing = WindowTiming(0.0, 0.0, 0.0, 0)
        self._preparer = _Preparer(source, prepare, seed)
        self._source = source
        self._settings = settings
        self._cursor = _Cursor(source, first, last)
        self._generations: collections.deque[_Inline | _Crew] = collections.deque()
        self._closed = False
        self._limits = WorkerLimits(source, self._preparer, start_method)
        self._note_beginning(first)
        wanted = 0 if settings.workers == "auto" else settings.workers
        self.workers = self._allowed(wanted)
        self._pin = settings.pin_memory and torch.cuda.is_available()

    def __iter__(self) -> WindowLoader:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        watch = _Watch()
        done, workers = self._next_done()
        self.last_timing = WindowTiming(done.fetch_ms, watch.wall_ms(), done.fetch_cpu_ms, workers)
        self._note(*done.notes)
        return done.value

    def _next_done(self) -> tuple[_Done, int]:
        """From the oldest generation that still has windows."""
        if not self._generations:
            self._generations.append(self._start(self.workers))
        while self._generations:
            generation = self._generations[0]
            try:
                return next(generation), generation.workers
            except StopIteration:
                self._generations.popleft().close()
            except BaseException:
                self.close()
                raise
        self.close()
        raise StopIteration

    @property
    def most_workers(self) -> int | None:
        """The most workers this source and process can have, for a tuner; None means any number."""
        return self._limits.most()

    def set_workers(self, workers: int) -> None:
        """Change the number of workers now; windows in flight drain, no order and no random number changes."""
        workers = self._allowed(workers)
        if self._closed or workers == self.workers:
            return
        if self._generations and not self._succeed(workers):
            return
        self.workers = workers

    def _succeed(self, workers: int) -> bool:
        """Start the next generation, or keep the present one if the system has no room for more processes."""
        present = self._generations[-1]
        try:
            self._generations.append(self._start(workers))
        except OSError as error:
            because = f"{workers} workers could not be started: {error}"
            self._note(Reason(f"loader.workers={self.workers}", because, {"workers_asked": workers}))
            return False
        present.feed.open = False
        return True

    def _start(self, workers: int) -> _Inline | _Crew:
        feed = _Feed(self._cursor)
        if workers == 0:
            return _Inline(feed, self._preparer, self._pin)
        return _Crew(feed, self._preparer.for_workers(), workers, self._settings, self._limits.method)

    def _allowed(self, workers: int) -> int:
        if workers < 0:
            raise SettingError(f"loader.workers={workers}: must be at least 0.")
        allowed, reasons = self._limits.allowed(workers)
        self._note(*reasons)
        return allowed

    def _note(self, *reasons: Reason) -> None:
        for reason in reasons:
            if all((reason.choice, reason.because) != (known.choice, known.because) for known in self.reasons):
                self.reasons.append(reason)

    def _note_beginning(self, first: int) -> None:
        self._note_generators()
        if first > 0 and self._source.refs(first) is None:
            because = f"a stream cannot be entered in the middle: windows 0 to {first - 1} are read and dropped"
            self._note(Reason("loader.skip=read", because, {"windows": first}))

    def _note_generators(self) -> None:
        own = own_generators(self._source.data)
        if own:
            names = ", ".join(f"{name} ({type(value).__name__})" for name, value in own.items())
            because = f"the dataset's own generators, {names}, are seeded per sample too, so that workers cannot matter"
            self._note(Reason("loader.seeding=per sample", because, {"attributes": ", ".join(own)}))

    def close(self) -> None:
        """Stop all workers. Iteration ends."""
        self._closed = True
        while self._generations:
            self._generations.popleft().close()

    def __enter__(self) -> WindowLoader:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()
        # torch's signal handler raises a worker's death wherever the training process happens to be.
        if isinstance(error, RuntimeError) and _is_death(error):
            raise _death(error) from error

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()
