"""Samples, tokens and padding of batches of many shapes."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest

from nearpeak.observe.batches import BatchMeter, BatchSize, count_samples, measure_batch

torch = pytest.importorskip("torch")

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
IDS = torch.arange(8).reshape(2, 4) + 5


def rows(*lengths: int, width: int = 12, left: bool = False) -> Any:
    """Token rows of these lengths, padded with 0."""
    whole = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in enumerate(lengths):
        tokens = torch.arange(1, length + 1) + 100 * row
        whole[row, width - length :] = 0
        whole[row, width - length :] = tokens if left else 0
        if not left:
            whole[row, :length] = tokens
    return whole


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ({"input_ids": IDS, "attention_mask": MASK}, BatchSize(2, 4, 8)),
        (UserDict({"input_ids": IDS, "attention_mask": MASK.bool()}), BatchSize(2, 4, 8)),
        (({"input_ids": IDS, "attention_mask": MASK}, torch.ones(2)), BatchSize(2, 4, 8)),
        ({"input_ids": rows(12, 5, 7)}, BatchSize(3, 24, 36)),
        ({"input_ids": rows(12, 5, 7, left=True)}, BatchSize(3, 24, 36)),
        ([rows(12, 11, 3), torch.zeros(3)], BatchSize(3, 26, 36)),
        ({"input_ids": rows(12, 12)}, BatchSize(2, None, 24)),
        ((torch.randn(6, 3, 8, 8), torch.zeros(6)), BatchSize(6, None, None)),
        (torch.randn(5, 2), BatchSize(5, None, None)),
        ((torch.zeros(4, 3, 16, 16, dtype=torch.int64), torch.zeros(4)), BatchSize(4, None, None)),
        (torch.tensor(3.0), BatchSize(None, None, None)),
        (["text", 3, None], BatchSize()),
        (object(), BatchSize()),
    ],
    ids=range(13),
)
def test_measures(batch: Any, size: BatchSize) -> None:
    assert measure_batch(batch) == size


def test_a_device_is_never_read() -> None:
    mask = torch.ones(2, 4, device="meta")
    assert measure_batch({"input_ids": mask, "attention_mask": mask}) == BatchSize(2, None, 8)


def test_counting_takes_a_thousandth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 5 ms whose count takes 0.1 ms: after the first ones two in a hundred are counted, two in a row."""
    clock = [0]

    def slow_measure(batch: Any) -> BatchSize:
        clock[0] += 100_000
        return measure_batch(batch)

    monkeypatch.setattr("nearpeak.observe.batches.measure_batch", slow_measure)
    meter, batch, counted = BatchMeter(lambda: clock[0]), {"input_ids": IDS, "attention_mask": MASK}, []
    for step in range(600):
        size = meter.measure(batch, step)
        assert size in (BatchSize(2, 4, 8), BatchSize(2))
        counted += [step] if size.tokens is not None else []
        clock[0] += 5_000_000
    assert counted[:16] == list(range(16))
    late = counted[16:]
    assert all(b == a + 1 for a, b in zip(late[::2], late[1::2], strict=True))
    assert 0.01 < len(late) / 584 < 0.06


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": IDS, "attention_mask": MASK},
        UserDict({"input_ids": IDS}),
        ({"input_ids": IDS}, torch.ones(2)),
        (torch.randn(6, 3, 8, 8), torch.zeros(6)),
        torch.randn(5, 2),
        torch.tensor(3.0),
        ["text", 3],
        [],
        {},
        {"input_ids": None, "labels": 3},
        {"attention_mask": MASK, "input_ids": "text"},
        object(),
    ],
    ids=range(12),
)
def test_samples_are_the_same_where_they_alone_are_counted(batch: Any) -> None:
    alone = count_samples(batch)
    assert alone is None or alone == measure_batch(batch).samples
