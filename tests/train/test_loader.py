"""The same windows in the same order with the same random numbers, whatever the workers do."""

from __future__ import annotations

import gc
import multiprocessing
import operator
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.errors import DataError, LossNotFiniteError, SettingError
from nearpeak.plan import LoaderSettings
from nearpeak.train.loader import (
    IterableSource,
    MapSource,
    WindowLoader,
    WindowSource,
    _Done,
    _Parcel,
    _Preparer,
    _Task,
    is_iterable,
)
from nearpeak.train.parcels import pack
from nearpeak.train.seeding import SampleRef, seeded
from nearpeak.train.workers import WorkerTuner


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Threads are watched for all tests together."""
    yield
    if multiprocessing.active_children():
        gc.collect()  # an exception's traceback may hold a loader
    assert multiprocessing.active_children() == []


def global_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().numpy().tobytes()))


class Noisy:
    """Draws from every generator that an augmentation may use, its own among them."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return (index, random.random(), np.random.rand(), torch.rand(()).item(), self.rng.random())


def windows_of(samples: int, size: int) -> Callable[[int], list[SampleRef]]:
    """Window k is positions [k·size, (k+1)·size) of a stream that is shuffled differently in each epoch."""

    def refs(window: int) -> list[SampleRef]:
        positions = range(window * size, (window + 1) * size)
        return [((7 * p + 3 * (p // samples)) % samples, p // samples, p) for p in positions]

    return refs


def stack(samples: list[Any], refs: list[SampleRef]) -> tuple[torch.Tensor, list[SampleRef]]:
    return torch.tensor(samples, dtype=torch.float64), refs


def load(
    source: WindowSource,
    prepare: Any = stack,
    *,
    last: int,
    first: int = 0,
    workers: int = 0,
    swaps: dict[int, int] | None = None,
    seed: int = 5,
    **more: Any,
) -> list[Any]:
    """Everything a loader yields; `swaps` maps a window to the workers set after it."""
    values = []
    with WindowLoader(
        source, prepare, first=first, last=last, settings=LoaderSettings(workers=workers), seed=seed, **more
    ) as loader:
        for window, value in enumerate(loader, start=first):
            values.append(value)
            if swaps and window in swaps:
                loader.set_workers(swaps[window])
    return values


def expected(data: Noisy, refs: Callable[[int], list[SampleRef]], first: int, last: int) -> list[Any]:
    """What the promise says, worked out without a loader."""
    values = []
    for window in range(first, last):
        samples = []
        for index, epoch, _ in refs(window):
            with seeded(5, epoch, index, owner=data):
                samples.append(data[index])
        values.append(stack(samples, refs(window)))
    return values


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for (values, refs), (other_values, other_refs) in zip(one, other, strict=True):
        assert refs == other_refs
        assert torch.equal(values, other_values)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_workers_any_swaps_any_restart(draw: st.DataObject) -> None:
    data = Noisy(draw.draw(st.integers(1, 30), label="samples"))
    refs = windows_of(data.samples, draw.draw(st.integers(1, 5), label="size"))
    last = draw.draw(st.integers(0, 16), label="last")
    first = draw.draw(st.integers(0, last), label="first")
    workers = draw.draw(st.integers(0, 2), label="workers")
    swaps = draw.draw(st.dictionaries(st.integers(0, 16), st.integers(0, 2), max_size=3), label="swaps")
    before = global_state()
    loaded = load(MapSource(data, refs), first=first, last=last, workers=workers, swaps=swaps)
    assert global_state() == before
    assert_same(loaded, expected(data, refs, first, last))


def test_swapping_in_the_middle_of_an_epoch_changes_nothing() -> None:
    data = Noisy(400)
    refs = windows_of(400, 4)
    swaps = {10: 2, 20: 5, 30: 1, 40: 3, 50: 0}
    before = global_state()
    assert_same(load(MapSource(data, refs), last=60, swaps=swaps), expected(data, refs, 0, 60))
    assert global_state() == before


def test_swapping_faster_than_windows_are_used() -> None:
    data = Noisy(50)
    refs = windows_of(50, 2)
    swaps = {3: 2, 4: 3, 5: 0, 6: 1, 7: 0, 8: 2}
    assert_same(load(MapSource(data, refs), last=30, swaps=swaps), expected(data, refs, 0, 30))
    with WindowLoader(MapSource(data, refs), stack, last=9, settings=LoaderSettings(workers=1), seed=5) as loader:
        first = next(loader)
        for workers in (2, 0, 1):
            loader.set_workers(workers)
        assert_same([first, *loader], expected(data, refs, 0, 9))


def test_swaps_before_the_first_window_and_after_the_last() -> None:
    source = MapSource(Noisy(9), windows_of(9, 3))
    loader = WindowLoader(source, stack, last=3, settings=LoaderSettings(workers=2), seed=5)
    loader.set_workers(1)
    assert loader.workers == 1
    assert_same(list(loader), expected(source.data, windows_of(9, 3), 0, 3))
    loader.set_workers(2)
    assert list(loader) == []
    loader.close()


def test_drains_the_old_workers_while_the_new_ones_prefetch() -> None:
    def who(samples: list[Any], refs: list[SampleRef]) -> tuple[int, int]:
        return os.getpid(), torch.get_num_threads()

    source = MapSource([0] * 40, lambda window: [(window, 0, window)])
    loaded = load(source, who, last=40, swaps={9: 2, 19: 1})
    pids = [pid for pid, _ in loaded]
    assert set(pids[:10]) == {os.getpid()}
    assert len(set(pids[10:24])) == 2  # 2 workers × 2 windows were in flight at the swap after window 19
    assert len(set(pids[24:])) == 1
    assert not set(pids[10:24]) & set(pids[24:])
    assert {threads for pid, threads in loaded if pid != os.getpid()} == {1}


def test_timing_tells_fetching_from_waiting() -> None:
    def slow(samples: list[Any], refs: list[SampleRef]) -> int:
        time.sleep(0.02)
        return len(samples)

    source = MapSource([0] * 8, lambda window: [(window, 0, window)])
    for workers in (0, 2):
        with WindowLoader(source, slow, last=8, settings=LoaderSettings(workers=workers), seed=0) as loader:
            for _ in loader:
                time.sleep(0.04)
            assert loader.last_timing.workers == workers
            assert loader.last_timing.fetch_ms >= 19
            assert loader.last_timing.fetch_cpu_ms < 15
            assert (loader.last_timing.wait_ms >= 19) is (workers == 0)


def test_auto_starts_without_workers_and_tuning_finds_six() -> None:
    class Remote:
        def __len__(self) -> int:
            return 90

        def __getitem__(self, index: int) -> int:
            time.sleep(0.056)
            return index

    tuner = WorkerTuner()
    source = MapSource(Remote(), lambda window: [(window, 0, window)])
    counts = []
    with WindowLoader(source, lambda samples, refs: samples[0], last=90, settings=LoaderSettings(), seed=0) as loader:
        for window, value in enumerate(loader):
            assert value == window
            counts.append(loader.workers)
            time.sleep(0.01)
            timing = loader.last_timing
            advice = tuner.observe(
                timing.fetch_ms, timing.wait_ms, 10.5, workers=timing.workers, fetch_cpu_ms=timing.fetch_cpu_ms
            )
            if advice:
                loader.set_workers(advice.workers)
    assert counts[0] == 0
    assert counts[40] in (6, 7)  # a busy machine stretches 10 and 56 ms unevenly


# ── results crossing the process border ──────────────────────────────────────


def test_every_kind_of_tensor_arrives_whole_and_writable() -> None:
    def tensors(samples: list[Any], refs: list[SampleRef]) -> dict[str, Any]:
        return {
            "turned": torch.arange(6).reshape(2, 3).t(),
            "scalar": torch.tensor(2.5),
            "empty": torch.empty(2, 0, 3, dtype=torch.int32),
            "bf16": torch.full((3,), 1.5, dtype=torch.bfloat16),
            "bool": torch.tensor([True, False]),
            "large": torch.arange(100_000).reshape(100, 1000),
            "sparse": torch.eye(3).to_sparse(),
            "nested": [(np.arange(3), "text", None)],
        }

    here, there = (load(MapSource([0], windows_of(1, 1)), tensors, last=1, workers=workers)[0] for workers in (0, 1))
    assert here.keys() == there.keys()
    assert np.array_equal(here.pop("nested")[0][0], there.pop("nested")[0][0])
    for name, value in here.items():
        assert there[name].dtype == value.dtype
        assert torch.equal(there[name].to_dense(), value.to_dense()), name
        if name != "sparse":
            there[name].fill_(1)


def test_what_cannot_travel_is_an_error_and_not_a_hang() -> None:
    def closure(samples: list[Any], refs: list[SampleRef]) -> Any:
        return lambda: samples

    with pytest.raises(DataError, match="window 0: .*closure"):
        load(MapSource([0], windows_of(1, 1)), closure, last=1, workers=1)


def test_small_tensors_travel_by_value_and_large_ones_in_shared_memory() -> None:
    def sizes(samples: list[Any], refs: list[SampleRef]) -> tuple[int, int, bool]:
        large = torch.zeros(100_000)
        return len(pack([torch.zeros(1000), torch.ones(1000)])), len(pack(large)), large.is_shared()

    [(small_bytes, large_bytes, shared)] = load(MapSource([0], windows_of(1, 1)), sizes, last=1, workers=1)
    assert small_bytes > 8000
    assert large_bytes < 2000
    assert shared


class Pinnable:
    def __init__(self) -> None:
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


def test_parcels_are_opened_and_pinned_on_the_loaders_own_thread() -> None:
    parcel = _Preparer(MapSource([0], in_order), lambda samples, refs: Pinnable(), 0)[_Task(0, [])]
    assert isinstance(parcel, _Parcel)
    done = parcel.pin_memory()
    assert isinstance(done, _Done)
    assert done.value.pinned


def test_tokenizers_do_not_warn_of_the_fork(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.encode_batch(["a"] * 1000)

    def encode(samples: list[Any], refs: list[SampleRef]) -> list[int]:
        return tokenizer.encode_batch(samples)[0].ids

    assert load(MapSource(["a"] * 3, lambda window: [(window, 0, window)]), encode, last=3, workers=1) == [[0]] * 3
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    assert capfd.readouterr().err == ""


# ── errors ───────────────────────────────────────────────────────────────────


class Broken:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 6:
            raise KeyError("no such picture")
        return index


def in_order(window: int) -> list[SampleRef]:
    return [(2 * window + place, 0, 2 * window + place) for place in range(2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_name_window_and_sample_and_show_where(workers: int) -> None:
    seen = []
    with (
        WindowLoader(
            MapSource(Broken(), in_order), stack, last=5, settings=LoaderSettings(workers=workers), seed=0
        ) as loader,
        pytest.raises(DataError, match="window 3: sample 6 of the dataset .*KeyError: 'no such picture'") as caught,
    ):
        seen.extend(loader)
    assert len(seen) == 3  # the windows before it all arrived
    assert caught.value.__cause__ is not None
    shown = caught.getrepr(chain=True)
    assert "__getitem__" in str(shown)


@pytest.mark.parametrize("workers", [0, 1])
def test_our_own_errors_keep_their_kind(workers: int) -> None:
    def prepare(samples: list[Any], refs: list[SampleRef]) -> None:
        raise LossNotFiniteError("NaN in the labels")

    with pytest.raises(LossNotFiniteError, match="window 0: NaN in the labels"):
        load(MapSource([0], windows_of(1, 1)), prepare, last=1, workers=workers)


def test_a_failing_order_is_not_mistaken_for_a_dead_worker() -> None:
    def refs(window: int) -> list[SampleRef]:
        if window == 4:
            raise RuntimeError("no such window")
        return [(0, 0, window)]

    with pytest.raises(RuntimeError, match="no such window"):
        load(MapSource([0], refs), last=9, workers=1)


def test_a_killed_worker_is_named_and_not_waited_for() -> None:
    class Deadly(Broken):
        def __getitem__(self, index: int) -> int:
            if index == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    start = time.monotonic()
    with pytest.raises(DataError, match=r"worker died \(.*pid.*\)\. If .* memory, .*loader\.workers"):
        load(MapSource(Deadly(), in_order), last=5, workers=2)
    assert time.monotonic() - start < 20


def step_after_a_kill(loader: WindowLoader) -> None:
    next(loader)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    time.sleep(5)  # a step; torch's signal handler raises in the midst of it


def test_a_death_that_interrupts_the_step_is_explained_too() -> None:
    source = MapSource([0], windows_of(1, 1))
    loader = WindowLoader(source, stack, last=20, settings=LoaderSettings(workers=2), seed=0)
    with pytest.raises(DataError, match="killed by signal: Killed.*short of memory"), loader:
        step_after_a_kill(loader)
    with pytest.raises(RuntimeError, match="of the user"), loader:
        raise RuntimeError("of the user")


def test_a_failed_fork_keeps_the_workers_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    source = MapSource(Noisy(20), windows_of(20, 2))
    with WindowLoader(source, stack, last=12, settings=LoaderSettings(workers=1), seed=5) as loader:
        values = [next(loader)]
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", lambda: (_ for _ in ()).throw(OSError(12, "Cannot allocate memory")))
            loader.set_workers(2)
        assert loader.workers == 1
        assert "Cannot allocate memory" in loader.reasons[-1].because
        assert_same([*values, *loader], expected(source.data, windows_of(20, 2), 0, 12))


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3)])
def test_refuses_windows_that_do_not_exist(first: int, last: int) -> None:
    with pytest.raises(SettingError, match=f"first={first}, last={last}"):
        WindowLoader(MapSource([0], in_order), stack, first=first, last=last, settings=LoaderSettings(), seed=0)


def test_refuses_a_negative_number_of_workers() -> None:
    loader = WindowLoader(MapSource([0], in_order), stack, last=0, settings=LoaderSettings(), seed=0)
    with pytest.raises(SettingError, match="-1"):
        loader.set_workers(-1)
    loader.close()


def test_refuses_a_start_method_that_is_not_there() -> None:
    with pytest.raises(SettingError, match="start_method='teleport'"):
        load(MapSource([0], in_order), last=0, start_method="teleport")


# ── leaving nothing behind (the fixtures look) ───────────────────────────────


def test_dropping_a_loader_in_mid_run_ends_its_workers() -> None:
    loader = WindowLoader(
        MapSource(Noisy(50), windows_of(50, 2)), stack, last=20, settings=LoaderSettings(workers=2), seed=0
    )
    next(loader)
    loader.set_workers(1)
    assert len(multiprocessing.active_children()) == 3
    del loader
    gc.collect()
    assert multiprocessing.active_children() == []


def test_close_ends_iteration_and_may_be_repeated() -> None:
    loader = WindowLoader(
        MapSource(Noisy(50), windows_of(50, 2)), stack, last=20, settings=LoaderSettings(workers=2), seed=0
    )
    next(loader)
    loader.close()
    assert multiprocessing.active_children() == []
    loader.close()
    assert list(loader) == []


# ── how workers are started ──────────────────────────────────────────────────


def choices(loader: WindowLoader) -> list[str]:
    return [reason.choice for reason in loader.reasons]


def test_says_why_it_forks_and_that_own_generators_are_seeded() -> None:
    source = MapSource(Noisy(4), windows_of(4, 2))
    loader = WindowLoader(source, stack, last=0, settings=LoaderSettings(workers=2), seed=0)
    assert choices(loader) == ["loader.seeding=per sample", "loader.start_method=fork"]
    assert "rng (Generator)" in loader.reasons[0].because
    loader.close()


def test_an_open_file_in_the_dataset_keeps_workers_away(tmp_path: Any) -> None:
    class Lines(Broken):
        def __init__(self) -> None:
            (tmp_path / "lines").write_text("0\n1\n2\n3\n")
            self.file = (tmp_path / "lines").open()

        def __getitem__(self, index: int) -> int:
            self.file.seek(2 * index)
            return int(self.file.readline())

    data = Lines()
    source = MapSource(data, lambda window: [(window, 0, window)])
    with WindowLoader(source, stack, last=4, settings=LoaderSettings(workers=2), seed=0) as loader:
        assert [values.item() for values, _ in loader] == [0, 1, 2, 3]
        assert loader.workers == 0
        assert "file (TextIOWrapper)" in loader.reasons[0].because
    data.file.close()


def test_spawned_workers_load_the_same() -> None:
    source = MapSource([f"text {index}" for index in range(10)], windows_of(10, 2))
    spawned = load(source, operator.add, last=5, workers=1, start_method="spawn")
    assert spawned == load(source, operator.add, last=5)


def test_spawning_what_cannot_be_pickled_stays_without_workers() -> None:
    source = MapSource([1.0, 2.0], windows_of(2, 1))
    loader = WindowLoader(
        source, lambda samples, refs: samples, last=2, settings=LoaderSettings(workers=2), seed=0, start_method="spawn"
    )
    assert loader.workers == 0
    assert "picklable" in loader.reasons[-1].because
    assert list(loader) == [[1.0], [2.0]]


def test_a_daemonic_process_may_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", {"daemon": True})
    loader = WindowLoader(MapSource([0], in_order), stack, last=0, settings=LoaderSettings(workers=2), seed=0)
    assert loader.workers == loader.most_workers == 0
    assert "daemon" in loader.reasons[-1].because
    loader.close()


# ── streams ──────────────────────────────────────────────────────────────────


class Stream(torch.utils.data.IterableDataset):
    """`samples` numbers an epoch, with random ones beside them."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.epoch = -1

    def __len__(self) -> int:  # torch allows it; it does not make the stream indexable
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        for index in range(self.samples):
            yield (self.epoch, index, random.random(), np.random.rand(), torch.rand(()).item())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_streams_give_consecutive_windows_whatever_the_workers(draw: st.DataObject) -> None:
    samples = draw.draw(st.integers(1, 12), label="samples")
    size = draw.draw(st.integers(1, 5), label="size")
    last = draw.draw(st.integers(1, 12), label="last")
    first = draw.draw(st.integers(0, last), label="first")
    workers = draw.draw(st.integers(0, 1), label="workers")
    swaps = draw.draw(st.dictionaries(st.integers(0, 12), st.integers(0, 1), max_size=2), label="swaps")
    remainder = draw.draw(st.sampled_from(["short", "carry"]), label="remainder")

    def source() -> IterableSource:
        return IterableSource(Stream(samples), size, remainder=remainder)

    before = global_state()
    whole = load(source(), last=last)
    loaded = load(source(), first=first, last=last, workers=workers, swaps=swaps)
    assert global_state() == before
    assert_same(loaded, whole[first:])
    _check_stream(whole, samples, size, remainder)


def _check_stream(whole: list[Any], samples: int, size: int, remainder: str) -> None:
    rows = [row for values, _ in whole for row in values.tolist()]
    refs = [ref for _, refs in whole for ref in refs]
    assert [(epoch, index) for epoch, index, *_ in rows] == [divmod(p, samples) for p in range(len(rows))]
    assert refs == [(p % samples, p // samples, p) for p in range(len(rows))]
    sizes = [len(refs) for _, refs in whole]
    rest = [samples % size] if samples % size else []
    epoch = [size] * (samples // size) + rest
    assert sizes == [size] * len(whole) if remainder == "carry" else (epoch * len(whole))[: len(whole)] == sizes
    assert len({row[2] for row in rows}) == len(rows)  # every sample of every epoch draws its own numbers


def test_a_dropped_remainder_of_a_stream() -> None:
    loaded = load(IterableSource(Stream(7), 3, remainder="drop"), last=4)
    assert [values[:, 1].tolist() for values, _ in loaded] == [[0, 1, 2], [3, 4, 5]] * 2
    assert [refs[0][2] for _, refs in loaded] == [0, 3, 6, 9]
    with pytest.raises(DataError, match="2 samples an epoch and global_batch=3"):
        load(IterableSource(Stream(2), 3, remainder="drop"), last=1)


def test_ranks_read_the_whole_stream_and_share_it() -> None:
    whole = load(IterableSource(Stream(10), 4), last=6)
    shares = [
        load(IterableSource(Stream(10), 4, lambda k, samples, r=rank: range(r, len(samples), 3)), last=6, workers=1)
        for rank in range(3)
    ]
    for window, (values, refs) in enumerate(whole):
        parts = [share[window] for share in shares]
        joined = sorted(
            (ref, row)
            for part_values, part_refs in parts
            for ref, row in zip(part_refs, part_values.tolist(), strict=True)
        )
        assert joined == sorted(zip(refs, values.tolist(), strict=True))


def test_a_stream_has_one_worker_at_most() -> None:
    with WindowLoader(
        IterableSource(Stream(9), 3), stack, last=3, first=1, settings=LoaderSettings(workers=4), seed=0
    ) as loader:
        assert loader.workers == loader.most_workers == 1
        loader.set_workers(2)
        assert loader.workers == 1
        assert len(list(loader)) == 2
        assert choices(loader) == ["loader.skip=read", "loader.workers=1"]


def test_an_iterator_stays_in_the_training_process() -> None:
    with WindowLoader(
        IterableSource(iter([1.0, 2.0, 3.0]), 2), stack, last=9, settings=LoaderSettings(workers=1), seed=0
    ) as loader:
        assert loader.workers == 0
        assert next(loader)[0].tolist() == [1, 2]
        assert next(loader)[0].tolist() == [3]
        with pytest.raises(DataError, match="window 2: .*yields nothing in epoch 1: it can be iterated only once"):
            next(loader)


def test_an_open_stream_is_not_shared_with_a_worker(tmp_path: Path) -> None:
    class Lines:
        def __iter__(self) -> Iterator[int]:
            with (tmp_path / "numbers").open() as file:
                yield from (int(line) for line in file)

    (tmp_path / "numbers").write_text("\n".join(str(number) for number in range(30_000)))
    swaps = {2: 1, 8: 0, 14: 1}
    loaded = load(IterableSource(Lines(), 1000), lambda samples, refs: samples, last=30, swaps=swaps)
    assert [number for window in loaded for number in window] == list(range(30_000))


def test_a_source_may_be_read_again_from_any_window() -> None:
    source = IterableSource(Stream(10), 3)
    whole = load(source, last=6)
    for first in (0, 4, 2):
        assert_same(load(source, first=first, last=6), whole[first:])
    once = IterableSource(iter([1.0, 2.0]), 1)
    load(once, last=1)
    with pytest.raises(DataError, match="window 0 of an iterator .* was read already"):
        load(once, last=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_stream_says_so(workers: int) -> None:
    with pytest.raises(DataError, match=r"window 0: the stream \(Stream\) yields no sample at all"):
        load(IterableSource(Stream(0), 2), last=1, workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_stream_names_the_sample(workers: int) -> None:
    class Torn:
        def __iter__(self) -> Iterator[float]:
            yield 1.0
            yield 2.0
            raise OSError("connection lost")

    with pytest.raises(DataError, match="window 1: sample 2 of epoch 0 of the stream .*OSError: connection lost"):
        load(IterableSource(Torn(), 2), last=3, workers=workers)


def test_huggingface_streams_reshuffle_each_epoch() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"a": list(range(12))})

    def epochs(workers: int) -> list[list[int]]:
        stream = rows.to_iterable_dataset().shuffle(seed=1, buffer_size=12)
        return load(
            IterableSource(stream, 12), lambda samples, refs: [s["a"] for s in samples], last=3, workers=workers
        )

    inline = epochs(0)
    assert inline == epochs(1)
    assert [sorted(epoch) for epoch in inline] == [list(range(12))] * 3
    assert inline[0] != inline[1] != inline[2]


@pytest.mark.parametrize(
    ("data", "expected"),
    [([1], False), (Noisy(3), False), (Stream(3), True), (iter([1]), True), ((n for n in range(3)), True)],
)
def test_knows_what_can_only_be_iterated(data: Any, expected: bool) -> None:
    assert is_iterable(data) is expected
