"""Metrics against values known otherwise: worked by hand, or published with the measure's definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.tasks.text_classification import metrics

CLASSES = ["a", "b", "c"]


def logits_for(predicted: list[int], classes: int = 3) -> np.ndarray:
    return np.eye(classes)[predicted] * 4.0


def test_single_label_by_hand() -> None:
    # truth     a a a a b b c      confusion: a: 3 hit of 4, b: 1 of 2, c: 1 of 1
    # predicted a a a b b c c      predicted: a 3, b 2, c 2
    found = metrics.score("single_label", logits_for([0, 0, 0, 1, 1, 2, 2]), [0, 0, 0, 0, 1, 1, 2], CLASSES)
    assert found["accuracy"] == found["micro_f1"] == pytest.approx(5 / 7)
    assert found["per_class"]["a"] == {"precision": 1.0, "recall": 0.75, "f1": pytest.approx(6 / 7), "rows": 4}
    assert found["per_class"]["b"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "rows": 2}
    assert found["per_class"]["c"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "rows": 1}
    assert found["macro_f1"] == pytest.approx((6 / 7 + 0.5 + 2 / 3) / 3)
    assert found["weighted_f1"] == pytest.approx((4 * 6 / 7 + 2 * 0.5 + 2 / 3) / 7)


def test_cross_entropy_by_hand() -> None:
    assert metrics.cross_entropy(np.array([[0.0, 0.0]]), np.array([1])) == pytest.approx(math.log(2))
    assert metrics.cross_entropy(np.array([[1000.0, 0.0]]), np.array([1])) == pytest.approx(1000)


def test_a_class_that_nobody_has_or_predicts_is_unknown_not_zero() -> None:
    found = metrics.score("single_label", logits_for([0, 1]), [0, 1], CLASSES)
    assert found["per_class"]["c"] == {"precision": None, "recall": None, "f1": None, "rows": 0}
    assert found["macro_f1"] == 1.0
    missed = metrics.score("single_label", logits_for([0, 0]), [0, 1], CLASSES)
    assert missed["per_class"]["b"] == {"precision": None, "recall": 0.0, "f1": 0.0, "rows": 1}
    assert missed["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)


def test_multi_label_by_hand() -> None:
    logits = np.array([[1, -1, -1], [1, 1, -1], [-1, -1, -1], [-1, 1, 1]])
    targets = np.array([[1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 1]])
    found = metrics.score("multi_label", logits, targets, CLASSES)
    # hits a 2, b 1, c 1; predicted 2, 2, 1; actual 2, 1, 2
    assert found["micro_f1"] == pytest.approx(2 * 4 / (5 + 5))
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert found["accuracy"] == 0.75
    assert found["hamming_accuracy"] == pytest.approx(10 / 12)
    agree = math.log1p(math.exp(-1))
    assert found["loss"] == pytest.approx((10 * agree + 2 * (1 + agree)) / 12)


def test_regression_by_hand() -> None:
    found = metrics.score("regression", [[2.5], [0.0], [2.0], [8.0]], [3.0, -0.5, 2.0, 7.0])
    assert found["rmse"] == pytest.approx(math.sqrt(0.375))
    assert found["mae"] == pytest.approx(0.5)
    assert found["r2"] == pytest.approx(0.9486081370449679)
    assert found["loss"] == pytest.approx(0.375)


def test_correlations_of_anscombes_first_set() -> None:
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert metrics.pearson(x, y) == pytest.approx(0.81642, abs=1e-5)
    assert metrics.spearman(x, y) == pytest.approx(0.81818, abs=1e-5)


def test_equal_values_share_their_ranks() -> None:
    assert metrics.mean_ranks([3, 1, 3, 2]).tolist() == [3.5, 1, 3.5, 2]
    assert metrics.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)


def test_a_constant_correlates_with_nothing() -> None:
    found = metrics.score("regression", [[1.0], [1.0]], [1.0, 1.0])
    assert (found["pearson"], found["spearman"], found["r2"], found["rmse"]) == (None, None, None, 0.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_micro_f1_of_one_label_is_accuracy(pairs: list[tuple[int, int]]) -> None:
    predicted, actual = (np.array(side) for side in zip(*pairs, strict=True))
    classes = np.arange(3)
    counts = metrics.class_counts(predicted[:, None] == classes, actual[:, None] == classes)
    assert metrics.micro_f1(counts) == pytest.approx(float((predicted == actual).mean()))


def test_which_model_is_better() -> None:
    best = {"accuracy": 0.5, "rmse": 0.5, "loss": 1.0}
    assert metrics.is_better("accuracy", best, None)
    assert metrics.is_better("accuracy", best | {"accuracy": 0.6}, best)
    assert not metrics.is_better("accuracy", best | {"accuracy": 0.4}, best)
    assert metrics.is_better("rmse", best | {"rmse": 0.4}, best)
    assert metrics.is_better("accuracy", best | {"loss": 0.9}, best)  # a tie goes to the lower loss
    assert not metrics.is_better("accuracy", best, best)
    assert not metrics.is_better("pearson", {"pearson": None, "loss": 0.0}, None)
    assert metrics.is_better("pearson", {"pearson": -0.5, "loss": 9.0}, {"pearson": None, "loss": 0.0})
