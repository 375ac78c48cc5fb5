"""Regrouping as arithmetic: which rows share a micro-batch, and by what its loss is scaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from trainer_tools import make_model

from nearpeak.integrations._obstacles import obstacle_in_window
from nearpeak.integrations._weights import measure_kind, weights_of
from nearpeak.integrations._window import Method, budget_of, micro_batches
from nearpeak.train.packed import PackedAdapter

MODEL = make_model("bert")


def batch_of(lengths: list[int], first: int = 0, width: int | None = None) -> dict[str, torch.Tensor]:
    """A padded batch whose labels number its rows."""
    columns = torch.arange(width or max(lengths))
    mask = (columns[None] < torch.tensor(lengths)[:, None]).long()
    return {
        "input_ids": mask * 7 + (1 - mask),
        "attention_mask": mask,
        "labels": torch.arange(first, first + len(lengths)),
    }


windows = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=5)


@given(windows, st.sampled_from(["packed", "partition"]), st.sampled_from(["samples", "targets", "items"]))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_within_the_budget_with_its_weight(sizes: Any, name: Any, kind: Any) -> None:
    starts = [sum(map(len, sizes[:i])) for i in range(len(sizes))]
    batches = [batch_of(lengths, start) for lengths, start in zip(sizes, starts, strict=True)]
    adapter = PackedAdapter.find(MODEL)[0] if name == "packed" else None
    parts = micro_batches(batches, Method(name, kind, adapter=adapter), budget_of(batches))
    seen = {}
    for part in parts:
        labels = part.inputs["labels"].tolist()
        assert part.tokens == part.inputs["input_ids"].numel() <= budget_of(batches)
        # The mean over the micro-batch, scaled; or the sum, which needs no scale.
        seen.update(dict.fromkeys(labels, part.scale / (1 if kind == "items" else len(labels))))
    own = {
        row: 1 if kind == "items" else 1 / len(batch["labels"]) for batch in batches for row in batch["labels"].tolist()
    }
    assert seen == pytest.approx(own)


def test_rows_without_a_label_do_not_count() -> None:
    batch = {**batch_of([3, 4, 5]), "labels": torch.tensor([2, -100, 1])}
    weights = weights_of([batch], "targets", shifted=False)
    assert (weights.units, weights.totals) == ([1, 0, 1], [2, 2, 2])
    assert weights.scale([1]) == 0
    parts = micro_batches([batch], Method("partition", "targets"), 5)
    assert [part.inputs["labels"].tolist() for part in parts] == [[1], [2]]


def token_loss(reduction: str) -> Any:
    """The loss of a made-up model whose tokens' losses are their squares."""

    def loss_of(batch: Any, items: Any) -> float:
        labels = batch["labels"]
        each = (labels.double() + 1.5) ** 2 * (labels != -100)
        if reduction == "items":
            return float(each.sum() / items)
        if reduction == "targets":
            return float(each.sum() / (labels != -100).sum())
        if reduction == "samples":
            return float(each.flatten(1).sum(1).mean()) if labels.dim() > 1 else float(each.mean())
        return float(each.max() + each.sum() / items)

    return loss_of


@pytest.mark.parametrize("reduction", ["items", "targets", "samples"])
def test_what_the_loss_is_a_mean_over_is_measured(reduction: Any) -> None:
    batch = batch_of([3, 9, 6, 4])
    batch["labels"] = torch.where(batch["attention_mask"] == 1, torch.arange(36).reshape(4, 9) % 7, -100)
    assert measure_kind(token_loss(reduction), [batch], torch.tensor(22.0), shifted=False).kind == reduction


def test_a_loss_that_is_no_mean_is_told() -> None:
    batch = batch_of([3, 9, 6, 4], first=1)
    assert measure_kind(token_loss("maximum"), [batch], torch.tensor(4.0), shifted=False).kind is None
    coupled = measure_kind(lambda b, _: float(b["labels"].double().prod()), [batch], None, shifted=False)
    assert coupled.kind is None
    assert "no mean" in coupled.because


def test_measures_a_real_head() -> None:
    batch = {**batch_of([3, 9, 6, 4]), "labels": torch.tensor([0, 1, 2, 1])}

    def loss_of(rows: Any, items: Any) -> float:
        inputs = {key: value for key, value in rows.items() if key != "labels"}
        return float(cross_entropy(MODEL(**inputs).logits, rows["labels"]).detach())

    measured = measure_kind(loss_of, [batch], torch.tensor(4), shifted=False)
    assert measured.kind == "targets"  # of which each row has one


@pytest.mark.parametrize(
    ("batches", "because"),
    [
        ([], "empty"),
        ([[1, 2]], "list, not dictionaries"),
        ([{"pixel_values": torch.zeros(2, 3)}], "real lengths are unknown"),
        ([{**batch_of([2, 3]), "return_loss": True}], "'return_loss' has no row"),
        ([{**batch_of([2, 3]), "bias": torch.zeros(3)}], "'bias' has no row"),
        ([batch_of([2, 3]), {**batch_of([2]), "extra": torch.zeros(1)}], "different keys"),
        (
            [{**batch_of([2]), "image": torch.zeros(1, 4)}, {**batch_of([3]), "image": torch.zeros(1, 5)}],
            "different width",
        ),
    ],
)
def test_windows_that_cannot_be_cut_say_why(batches: Any, because: str) -> None:
    assert because in (obstacle_in_window(batches) or "")


def test_a_window_that_can_be_cut() -> None:
    assert obstacle_in_window([batch_of([2, 3]), {**batch_of([4])}]) is None
