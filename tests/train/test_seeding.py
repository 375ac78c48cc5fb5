"""Randomness in the data path depends on (seed, epoch, index) and leaves no trace."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import DataError
from nearpeak.train.seeding import (
    RandomSources,
    _mix,
    collate_seeded,
    fetch_seeded,
    own_generators,
    runs_code,
    sample_seed,
    seeded,
    take_notes,
)

WORDS = st.integers(0, 2**64 - 1)


def draw() -> tuple[float, ...]:
    numbers = (random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(()).item())
    return (*numbers, torch.rand(3)[1].item())


def global_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().numpy().tobytes()))


class Augmented:
    """Draws from all three global generators, and from two of its own."""

    def __init__(self, samples: int = 20) -> None:
        self.samples = samples
        self.rng = np.random.default_rng(1)
        self.transform = Transform()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index >= self.samples:
            raise IndexError(index)
        return (index, *draw(), self.rng.random(), self.transform())


class Transform:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.legacy = np.random.RandomState(3)
        self.python = random.Random(5)

    def __call__(self) -> tuple[float, float, float]:
        return (torch.rand((), generator=self.generator).item(), self.legacy.rand(), self.python.random())


def test_seeds_are_the_same_on_every_platform_and_for_ever() -> None:
    assert sample_seed(0, 0, 0) == 2391539541053276776
    assert sample_seed(42, 3, 123_456, stream=1) == 11540926107781441548
    assert _mix(0) == 0xE220A8397B1DCDAF  # splitmix64's published first number
    assert sample_seed(-1, 0, 0) == sample_seed(2**64 - 1, 0, 0)


@given(seed=WORDS, epoch=st.integers(0, 2**32), index=st.integers(0, 2**40))
def test_neighbours_share_no_bits_but_by_chance(seed: int, epoch: int, index: int) -> None:
    here = sample_seed(seed, epoch, index)
    neighbours = (
        sample_seed(seed, epoch, index + 1),
        sample_seed(seed, epoch + 1, index),
        sample_seed(seed + 1, epoch, index),
        sample_seed(seed, epoch, index, stream=1),
    )
    assert all(8 <= (here ^ there).bit_count() <= 56 for there in neighbours)


def test_seeds_of_a_large_job_do_not_collide() -> None:
    seeds = {sample_seed(0, epoch, index) & 0xFFFFFFFF for epoch in range(3) for index in range(3000)}
    assert len(seeds) >= 8998


@given(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True), st.integers(0, 3), WORDS)
def test_a_sample_is_the_same_in_whatever_company(indices: list[int], epoch: int, seed: int) -> None:
    data = Augmented()
    together = fetch_seeded(data, [(index, epoch, position) for position, index in enumerate(indices)], seed)
    for place, index in enumerate(indices):
        data.rng.random(5)
        assert fetch_seeded(data, [(index, epoch, 99)], seed)[0] == together[place]


def test_epochs_seeds_and_samples_draw_differently() -> None:
    data = Augmented()
    cases = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]
    numbers = [fetch_seeded(data, [(index, epoch, 0)], seed)[0][1:] for seed, epoch, index in cases]
    for column in zip(*[_flat(row) for row in numbers], strict=True):
        assert len(set(column)) == len(cases)


def _flat(row: tuple[Any, ...]) -> list[float]:
    return [number for item in row for number in (item if isinstance(item, tuple) else (item,))]


def test_the_generators_of_one_sample_do_not_draw_alike() -> None:
    numbers = _flat(fetch_seeded(Augmented(), [(3, 0, 0)], 0)[0][1:])
    assert len({round(number, 6) for number in numbers}) == len(numbers)


def test_numpy_and_torch_do_not_draw_the_same_stream() -> None:
    with seeded(0, 0, 0):
        ours = np.random.randint(0, 2**24, 50), torch.randint(0, 2**24, (50,)).numpy()
    assert len(set(ours[0]) & set(ours[1])) == 0


def test_seeded_leaves_no_trace() -> None:
    random.gauss(0, 1)  # leaves a second number in store, which is part of the state
    np.random.randn()
    before = global_state()
    with seeded(1, 2, 3):
        first = draw()
    assert global_state() == before
    with seeded(1, 2, 3):
        assert draw() == first


def test_seeded_leaves_no_trace_when_the_sample_fails() -> None:
    before = global_state()
    with pytest.raises(ZeroDivisionError), seeded(1, 2, 3):
        _ = draw()[0] / 0
    assert global_state() == before


def test_seeded_leaves_the_datasets_own_generators() -> None:
    data = Augmented()
    expected = (data.rng.random(), data.transform())
    data = Augmented()
    with seeded(0, 0, 0, owner=data):
        assert (data.rng.random(), data.transform()) != expected
    assert (data.rng.random(), data.transform()) == expected


def test_finds_generators_one_attribute_further_in() -> None:
    assert sorted(own_generators(Augmented())) == ["rng", "transform.generator", "transform.legacy", "transform.python"]


@pytest.mark.parametrize("data", [[1], {"a": 1}, Augmented, None, random, torch.default_generator])
def test_finds_no_generators_where_none_are(data: Any) -> None:
    assert own_generators(data) == {}


def test_system_random_has_no_state_and_is_left_alone() -> None:
    data = Transform()
    data.python = random.SystemRandom()
    assert "python" not in own_generators(data)


def test_cuda_generators_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded CUDA"))
    RandomSources().seed(1)


class ListOfMine(list):
    def __getitem__(self, index: Any) -> Any:
        return (super().__getitem__(index), random.random())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([1, 2], False),
        ((1, 2), False),
        (range(3), False),
        (np.arange(3), False),
        (torch.arange(3), False),
        (torch.utils.data.TensorDataset(torch.arange(3)), False),
        (torch.utils.data.Subset([1, 2, 3], [0, 1]), False),
        (torch.utils.data.Subset(Augmented(), [0, 1]), True),
        (torch.utils.data.ConcatDataset([[1], [2]]), False),
        (torch.utils.data.ConcatDataset([[1], ListOfMine([2])]), True),
        (ListOfMine([1, 2]), True),
        (Augmented(), True),
    ],
)
def test_knows_where_code_runs(data: Any, expected: bool) -> None:
    assert runs_code(data) is expected
    assert len(fetch_seeded(data, [(1, 0, 0), (0, 0, 1)], 0)) == 2


def test_huggingface_datasets_run_code_only_with_a_transform() -> None:
    datasets = pytest.importorskip("datasets")
    plain = datasets.Dataset.from_dict({"a": list(range(10))})
    assert not runs_code(plain)
    assert not runs_code(plain.with_format("torch"))
    assert fetch_seeded(plain, [(7, 0, 0), (2, 0, 1)], 0) == [{"a": 7}, {"a": 2}]
    noisy = plain.with_transform(lambda rows: {"a": [value + random.random() for value in rows["a"]]})
    assert runs_code(noisy)
    one, two = fetch_seeded(noisy, [(7, 0, 0), (2, 0, 1)], 0)
    assert fetch_seeded(noisy, [(2, 0, 5), (7, 0, 9)], 0) == [two, one]
    assert one["a"] % 1 != two["a"] % 1


@pytest.mark.parametrize("data", [[1, 2, 3], Augmented(3)])
def test_errors_name_the_sample(data: Any) -> None:
    with pytest.raises(DataError, match="sample 17 of the dataset could not be read: IndexError") as caught:
        fetch_seeded(data, [(0, 0, 0), (17, 0, 1)], 0)
    assert isinstance(caught.value.__cause__, IndexError)


def test_errors_of_batched_reading_name_the_sample() -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(DataError, match="sample 30 of the dataset"):
        fetch_seeded(datasets.Dataset.from_dict({"a": [1, 2]}), [(0, 0, 0), (30, 0, 1)], 0)


# ── collators ────────────────────────────────────────────────────────────────


class Padding:
    """Pads `input_ids` with 0, as tokenizers do; masks at random if asked to."""

    def __init__(self, masks: str = "", rng: Any = None) -> None:
        self.masks = masks
        self.rng = rng
        self.sizes: list[int] = []

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        self.sizes.append(len(samples))
        rows = [torch.tensor(sample.pop("input_ids")) for sample in samples]  # some collators do eat their samples
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        return {"input_ids": torch.where(self._hidden(ids.shape) & mask.bool(), 103, ids), "attention_mask": mask}

    def _hidden(self, shape: torch.Size) -> torch.Tensor:
        if self.masks == "torch":
            return torch.rand(shape) < 0.5
        if self.masks == "numpy":
            return torch.from_numpy(np.random.rand(*shape)) < 0.5
        if self.masks == "python":
            return torch.tensor([[random.random() < 0.5 for _ in range(shape[1])] for _ in range(shape[0])])
        if self.masks == "own":
            self.rng = self.rng or torch.Generator().manual_seed(1)
            return torch.rand(shape, generator=self.rng) < 0.5
        return torch.zeros(shape, dtype=torch.bool)


def samples_and_refs(count: int) -> tuple[list[dict[str, Any]], list[tuple[int, int, int]]]:
    samples = [{"input_ids": list(range(1, 5 + 3 * index))} for index in range(count)]
    return samples, [(10 + index, 2, index) for index in range(count)]


def test_a_collator_that_draws_nothing_collates_together() -> None:
    collate = Padding()
    samples, refs = samples_and_refs(4)
    before = global_state()
    batch = collate_seeded(collate, samples, refs, 0)
    assert collate.sizes == [4]
    assert batch["input_ids"].shape == (4, 13)
    assert global_state() == before
    assert take_notes() == []


@pytest.mark.parametrize("masks", ["torch", "numpy", "python", "own"])
def test_masking_does_not_depend_on_the_micro_batch(masks: str) -> None:
    collate = Padding(masks)
    before = global_state()
    whole = collate_seeded(collate, *samples_and_refs(4), 0)
    assert [reason.choice for reason in take_notes()] == ["collate=per sample"]
    samples, refs = samples_and_refs(4)
    order = [2, 0, 3, 1]
    parts = [collate_seeded(collate, [samples[i]], [refs[i]], 0) for i in order]
    for part, place in zip(parts, order, strict=True):
        length = part["input_ids"].shape[1]
        assert torch.equal(part["input_ids"][0], whole["input_ids"][place, :length])
        assert not whole["attention_mask"][place, length:].any()
    assert global_state() == before
    assert collate.sizes == [4, *[1] * 8]  # watched once, remembered after
    assert (whole["input_ids"] == 103).any()
    assert not torch.equal(whole["input_ids"], collate_seeded(collate, *samples_and_refs(4), 1)["input_ids"])
    assert take_notes() == []


def test_masking_differs_between_samples_and_epochs() -> None:
    samples = [{"input_ids": list(range(1, 40))} for _ in range(3)]
    batch = collate_seeded(Padding("torch"), samples, [(4, 0, 0), (5, 0, 1), (4, 1, 2)], 0)
    assert len({tuple(row) for row in batch["input_ids"].tolist()}) == 3
    take_notes()


def test_masking_of_transformers_does_not_depend_on_the_micro_batch() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"w{i}": i + 3 for i in range(50)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]"
    )
    for seed in (None, 3):
        collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=seed)
        samples, refs = samples_and_refs(3)
        whole = collate_seeded(collate, samples, refs, 0)
        alone = collate_seeded(collate, samples[1:2], refs[1:2], 0)
        length = alone["input_ids"].shape[1]
        assert torch.equal(alone["labels"][0], whole["labels"][1, :length])
        assert torch.equal(alone["input_ids"][0], whole["input_ids"][1, :length])
        assert (whole["labels"] != -100).any()
    take_notes()


def test_bound_methods_are_remembered_too() -> None:
    class Mine:
        calls = 0

        def collate(self, samples: list[Any]) -> dict[str, torch.Tensor]:
            Mine.calls += 1
            return {"x": torch.rand(len(samples))}

    mine = Mine()
    for _ in range(3):
        collate_seeded(mine.collate, [1, 2], [(0, 0, 0), (1, 0, 1)], 0)
    assert Mine.calls == 1 + 3 * 2
    take_notes()


def test_results_that_cannot_be_joined_say_what_to_do() -> None:
    def tuples(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(len(samples)), torch.zeros(len(samples))

    with pytest.raises(DataError, match=r"draws random numbers.*it returns tuple.*in the dataset's __getitem__"):
        collate_seeded(tuples, [1, 2], [(0, 0, 0), (1, 0, 1)], 0)

    def ragged(samples: list[Any]) -> dict[str, torch.Tensor]:
        return {"x": torch.rand(len(samples), *range(1, 1 + samples[0]))}

    with pytest.raises(DataError, match=r"could not be joined"):
        collate_seeded(ragged, [1, 2], [(0, 0, 0), (1, 0, 1)], 0)
    take_notes()
