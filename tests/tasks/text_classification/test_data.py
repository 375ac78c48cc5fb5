"""Splits: what is read into them, held out of them, and noted about them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nearpeak.errors import DataError, SettingError
from nearpeak.tasks.text_classification.config import DataConfig
from nearpeak.tasks.text_classification.data import TextData, load_data


def write(path: Path, rows: list[tuple[str, ...]], header: str = "text,label") -> str:
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return str(path)


def load(tmp_path: Path, rows: list[tuple[str, ...]], header: str = "text,label", **settings: Any) -> TextData:
    return load_data(DataConfig(train=write(tmp_path / "train.csv", rows, header), **settings))


ROWS = [("good thing", "yes"), ("bad thing", "no"), ("fine thing", "yes")]


def test_splits_of_several_files_know_where_each_row_stands(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.csv", ROWS), write(tmp_path / "b.csv", [("worse", "no")])
    data = load_data(DataConfig(train=(first, second), validation=second))
    assert (data.train.texts[3], data.train.labels) == ("worse", [1, 0, 1, 0])
    assert data.train.where(2) == f"{first}, row 3 (line 4)"
    assert data.train.where(3) == f"{second}, row 1 (line 2)"
    assert "validation: 1 of 1 texts are in the training rows too" in data.notes


@pytest.mark.parametrize("empty", ["", "   ", '"\n"', '"\u00a0"'])
def test_an_empty_text_is_named_by_its_row(tmp_path: Path, empty: str) -> None:
    with pytest.raises(DataError, match=r"train.csv, row 2 \(line 3\): the text \('text'\) is empty"):
        load(tmp_path, [ROWS[0], (empty, "no"), ROWS[2]])


def test_several_empty_texts_are_counted_or_skipped(tmp_path: Path) -> None:
    rows = [*ROWS, ("", "no"), *ROWS, ("", "no"), ("", "yes")]
    with pytest.raises(DataError, match="row 4 .* So are 2 more, rows 8, 9"):
        load(tmp_path, rows)
    data = load(tmp_path, rows, empty="skip")
    assert len(data.train) == 6
    assert data.train.where(3) == f"{tmp_path / 'train.csv'}, row 5 (line 6)"
    assert any("3 rows without text are skipped" in note for note in data.notes)
    with pytest.raises(DataError, match="no row has text"):
        load(tmp_path, [("", "yes"), ("", "no")], empty="skip")


def test_an_empty_second_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 2 .*: the text \('other'\) is empty"):
        load(tmp_path, [("a", "b", "x"), ("a", "", "y")], "text,other,label", text_pair="other")


def test_text_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": 7, "label": "y"}\n')
    with pytest.raises(DataError, match=r"row 2 \(line 2\): text=7 is a int, not text"):
        load_data(DataConfig(train=str(path)))
    path.write_text('{"text": "a", "label": "x"}\n{"label": "y"}\n')
    with pytest.raises(DataError, match="row 2 .* is empty"):
        load_data(DataConfig(train=str(path)))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_that_only_another_split_has(tmp_path: Path, split: str) -> None:
    other = write(tmp_path / "other.csv", [("a", "yes"), ("b", "maybe")])
    with pytest.raises(
        DataError, match=r"other.csv, row 2 \(line 3\): the label 'maybe' does not occur in the training rows"
    ):
        load(tmp_path, ROWS, **{split: other})


def test_a_class_that_the_data_names_but_training_lacks(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    for name, labels in (("train", [0, 1, 0]), ("validation", [0, 2, 1])):
        data = datasets.Dataset.from_dict({"text": ["x", "y", "z"], "label": labels}, features=features)
        data.save_to_disk(str(tmp_path / name))
    with pytest.raises(DataError, match="validation, row 2: no training row has the label 'c'"):
        load_data(DataConfig(train=str(tmp_path / "train"), validation=str(tmp_path / "validation")))


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    shares=st.tuples(st.floats(0.05, 0.4), st.floats(0.05, 0.4)),
    seed=st.integers(0, 5),
)
def test_held_out_rows_are_disjoint_and_leave_each_class_to_training(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], shares: tuple[float, float], seed: int
) -> None:
    rows = [(f"text {label} {row}", f"c{label}") for label, count in enumerate(counts) for row in range(count)]
    path = write(tmp_path_factory.mktemp("held") / "t.csv", rows)
    config = DataConfig(train=path, validation_fraction=shares[0], test_fraction=shares[1], problem="single_label")
    try:
        data = load_data(config, seed)
    except DataError as error:  # too few rows for such a share
        assume("holds out none" not in str(error))
        raise
    assert sorted(text for split in data.splits for text in split.texts) == sorted(text for text, _ in rows)
    assert set(data.train.labels) == set(range(len(counts)))
    for split, share in zip(data.splits[1:], shares, strict=True):
        assert len(split) <= share * len(rows) + 1
    again = load_data(config, seed)
    assert [split.texts for split in again.splits] == [split.texts for split in data.splits]


def test_a_share_of_many_small_classes_is_still_that_share(tmp_path: Path) -> None:
    data = load(tmp_path, [(f"t{row}", f"c{row % 50}") for row in range(200)], validation_fraction=0.1)
    assert data.validation is not None
    assert len(data.validation) == 20
    assert max(Counter(data.validation.labels).values()) == 1


def test_a_share_too_small_for_the_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds out none"):
        load(tmp_path, ROWS, validation_fraction=0.01)


def test_imbalance_and_look_alikes_are_noted_not_refused(tmp_path: Path) -> None:
    data = load(tmp_path, [("a", "yes")] * 30 + [("b", "no")] * 2 + [("c", "Yes")] * 6)
    assert "labels: 3, most frequent 'yes' (30 of 38 rows, 79%), rarest 'no' (2)" in data.notes
    assert any("under 5 training rows: no" in note for note in data.notes)
    assert any("differ only in case or spaces" in note for note in data.notes)


def test_one_label_only(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="all 3 rows have the same label, 'yes'"):
        load(tmp_path, [("a", "yes"), ("b", "yes"), ("c", "yes")])


def test_multi_label_in_one_csv_column_needs_a_separator(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="data.label_separator"):
        load(tmp_path, ROWS, problem="multi_label")


def test_targets_are_summed_up(tmp_path: Path) -> None:
    data = load(tmp_path, [("a", "0.5"), ("b", "2.5")])
    assert data.space.problem == "regression"
    assert "targets: 0.5 to 2.5, mean 1.5" in data.notes
