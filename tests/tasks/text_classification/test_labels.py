"""Which problem labels pose, and what each becomes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nearpeak.errors import DataError
from nearpeak.tasks.text_classification.config import DataConfig
from nearpeak.tasks.text_classification.labels import RawLabels, check_variety, encode_labels, learn_labels
from nearpeak.tasks.text_classification.reading import MISSING


def raw(values: list[Any], typed: bool = True, names: tuple[str, ...] = ()) -> RawLabels:
    return RawLabels(values, lambda row: f"t.csv, row {row + 1}", typed, names)


def learned(
    values: list[Any], typed: bool = True, names: tuple[str, ...] = (), **settings: Any
) -> tuple[str, Any, list[Any]]:
    config = DataConfig(train="t.csv", **settings)
    space, _ = learn_labels(raw(values, typed, names), config)
    return space.problem, space.names, encode_labels(raw(values, typed, names), space, config)


@pytest.mark.parametrize(
    ("values", "typed", "settings", "problem", "names", "encoded"),
    [
        (["b", "a", "b"], False, {}, "single_label", ("a", "b"), [1, 0, 1]),
        (["10", "2", "2"], False, {}, "single_label", ("2", "10"), [1, 0, 0]),
        (["-1", "+1", "-1"], False, {}, "single_label", ("-1", "+1"), [0, 1, 0]),
        ([10, 2, 2], True, {}, "single_label", ("2", "10"), [1, 0, 0]),
        ([True, False], True, {}, "single_label", ("False", "True"), [1, 0]),
        ([1.0, 2.0], True, {"problem": "single_label"}, "single_label", ("1", "2"), [0, 1]),
        (["0.5", "2", "-1e3"], False, {}, "regression", (), [0.5, 2.0, -1000.0]),
        ([0.5, 2], True, {}, "regression", (), [0.5, 2.0]),
        (["1", "2"], False, {"problem": "regression"}, "regression", (), [1.0, 2.0]),
        ([["a"], [], ["b", "a"]], True, {}, "multi_label", ("a", "b"), [[1, 0], [0, 0], [1, 1]]),
        (["a; b", "", "b"], False, {"label_separator": ";"}, "multi_label", ("a", "b"), [[1, 1], [0, 0], [0, 1]]),
        ([("1", "0"), ("false", "TRUE")], False, {"label": ("x", "y")}, "multi_label", ("x", "y"), [[1, 0], [0, 1]]),
    ],
)  # fmt: skip
def test_problems_are_told_apart(
    values: list[Any], typed: bool, settings: dict[str, Any], problem: str, names: tuple[str, ...], encoded: list[Any]
) -> None:
    assert learned(values, typed, **settings) == (problem, names, encoded)


def test_classes_that_the_data_names() -> None:
    assert learned([1, 0, 1], names=("no", "yes")) == ("single_label", ("no", "yes"), [1, 0, 1])
    assert learned([[1], [0, 1]], names=("no", "yes"))[2] == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("values", "typed", "settings", "message"),
    [
        ([1, "1"], True, {}, r"mixed types: t.csv, row 1 holds 1 \(int\); t.csv, row 2 holds '1' \(str\)"),
        ([0.5, "x"], True, {}, "mixed types"),
        ([True, 1, 0], True, {}, "mixed types"),
        ([["a"], [1]], True, {}, "mixed types"),
        (["0.5", "2", "spam"], False, {}, r"row 1 holds '0.5' \(number\); t.csv, row 3 holds 'spam' \(word\)"),
        (["a", "", "b", " "], False, {}, r"row 2: the label \('label'\) is missing, and in 1 more: row 4"),
        ([1, None], True, {}, "row 2: the label .* is missing"),
        ([1, MISSING], True, {}, "row 2: the label .* is missing"),
        ([0.5, math.nan], True, {}, "row 2: the target is nan"),
        (["0.5", "NaN"], False, {}, "row 2: the target is 'NaN'"),
        ([0.5, math.inf], True, {}, "row 2: the target is inf"),
        (["1.5", "2,5"], False, {"problem": "regression"}, "'2,5' is not a number.*not commas"),
        ([0.5, "1.5"], True, {"problem": "regression"}, "row 2: the target '1.5' is not a number"),
        ([0.5, True], True, {"problem": "regression"}, "row 2: the target True is not a number"),
        ([0.5, 1.0], True, {"problem": "single_label"}, "row 1: the label 0.5 .* is not a class"),
        (["a", ["b"]], True, {"problem": "multi_label"}, "row 1: the label 'a' is not a list"),
        ([("1", "2")], False, {"label": ("x", "y")}, "row 1: y='2': a multi-label column holds 0 or 1"),
        ([("1", "")], False, {"label": ("x", "y")}, "row 1: y=''"),
        ([str(row) for row in range(30)], False, {}, "30 training rows have 30 different labels"),
        ([f"id{row}" for row in range(30)], False, {}, "hardly classes"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used(values: list[Any], typed: bool, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        learned(values, typed, **settings)


def test_hidden_labels_of_public_test_sets() -> None:
    with pytest.raises(DataError, match="row 2: the label is -1, which stands for a hidden label"):
        learned([1, -1], names=("no", "yes"))


def test_a_label_that_training_lacks() -> None:
    config = DataConfig(train="t.csv")
    space, _ = learn_labels(raw(["a", "b"], False), config)
    with pytest.raises(DataError, match="row 2: the label 'c' does not occur in the training rows"):
        encode_labels(raw(["a", "c"], False), space, config)


@pytest.mark.parametrize(
    ("values", "typed", "settings", "message"),
    [
        (["spam"] * 3, False, {}, "all 3 rows have the same label, 'spam'"),
        ([0.5] * 3, True, {}, "all 3 targets are 0.5"),
        ([["a", "b"]] * 3, True, {}, "same label, 'a, b'"),
    ],
)
def test_nothing_to_tell_apart(values: list[Any], typed: bool, settings: dict[str, Any], message: str) -> None:
    config = DataConfig(train="t.csv", **settings)
    space, _ = learn_labels(raw(values, typed), config)
    with pytest.raises(DataError, match=message):
        check_variety(encode_labels(raw(values, typed), space, config), space, "t.csv")
