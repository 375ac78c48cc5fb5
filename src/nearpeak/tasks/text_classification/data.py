"""From files to checked texts and labels: train, validation and test splits that fit each other."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from nearpeak.errors import DataError
from nearpeak.reason import Reason
from nearpeak.tasks.text_classification.config import DataConfig
from nearpeak.tasks.text_classification.labels import (
    LabelSpace,
    RawLabels,
    check_problem,
    check_variety,
    encode_labels,
    learn_labels,
)
from nearpeak.tasks.text_classification.reading import MISSING, ReadSettings, Table, read_table

__all__ = ["Split", "TextData", "load_data"]

RARE_CLASS_ROWS = 5


@dataclass(frozen=True, slots=True)
class Split:
    """The texts of one split, and where each came from."""

    name: str
    texts: list[str]
    pairs: list[str] | None
    labels: list[Any]
    """Class number, 0/1 per class, or target; raw values until the label space is known."""
    tables: tuple[Table, ...]
    rows: list[int]
    """Row of each sample in the tables, counted through all of them."""

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, sample: int) -> str:
        """File, row and line of a sample."""
        starts = [0, *accumulate(len(table) for table in self.tables)]
        place = bisect_right(starts, self.rows[sample]) - 1
        return self.tables[place].where(self.rows[sample] - starts[place])

    def take(self, samples: Sequence[int], name: str) -> Split:
        """Some of the samples, as a split of their own."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in samples]
        texts, labels = [self.texts[i] for i in samples], [self.labels[i] for i in samples]
        return replace(self, name=name, texts=texts, pairs=pairs, labels=labels, rows=[self.rows[i] for i in samples])


@dataclass(frozen=True, slots=True)
class TextData:
    """Everything that the files hold, checked."""

    train: Split
    validation: Split | None
    test: Split | None
    space: LabelSpace
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]
    """What the user should know about the data, short of an error."""

    @property
    def splits(self) -> list[Split]:
        return [split for split in (self.train, self.validation, self.test) if split is not None]


def load_data(config: DataConfig, seed: int = 0) -> TextData:
    """Read, check and split."""
    notes: list[str] = []
    read = {name: _read_split(name, config, notes) for name in ("train", "validation", "test") if getattr(config, name)}
    raw = _raw_labels(read["train"], config)
    check_problem(config, raw)
    space, reason = learn_labels(raw, config)
    splits = {name: _encoded(split, space, config) for name, split in read.items()}
    splits |= _held_out(splits["train"], space, config, seed)
    _check_train(splits["train"], splits, space, config)
    notes += _label_notes(splits["train"], space) + _overlap_notes(splits)
    return TextData(splits["train"], splits.get("validation"), splits.get("test"), space, (reason,), tuple(notes))


def _read_split(name: str, config: DataConfig, notes: list[str]) -> Split:
    paths = getattr(config, name)
    settings = ReadSettings(config.format, config.delimiter, config.encoding)
    files = (paths,) if isinstance(paths, str) else paths
    tables = tuple(read_table(path, config.columns, settings, split=name) for path in files)
    split = _joined(name, tables, config)
    filled = _filled_rows(split, config)
    if len(filled) < len(split):
        notes.append(f'{name}: {len(split) - len(filled):,} rows without text are skipped (data.empty = "skip")')
        split = split.take(filled, name)
    if not len(split):
        raise DataError(f"{', '.join(files)}: no row has text in {config.text!r}.")
    return split


def _joined(name: str, tables: tuple[Table, ...], config: DataConfig) -> Split:
    columns = {key: [value for table in tables for value in table.values[key]] for key in config.columns}
    labels: list[Any] = columns[config.label_columns[0]]
    if isinstance(config.label, tuple):
        labels = list(zip(*(columns[key] for key in config.label), strict=True))
    pairs = columns[config.text_pair] if config.text_pair else None
    return Split(name, columns[config.text], pairs, labels, tables, list(range(len(labels))))


def _filled_rows(split: Split, config: DataConfig) -> list[int]:
    """Samples with text in each text column; an error unless data.empty says to skip the others."""
    kept = list(range(len(split)))
    for column, texts in ((config.text, split.texts), (config.text_pair, split.pairs)):
        if texts is None:
            continue
        for row in kept:
            if not isinstance(texts[row], str) and texts[row] is not None and texts[row] is not MISSING:
                raise DataError(_not_text(split, row, str(column), texts[row]))
        empty = {row for row in kept if not isinstance(texts[row], str) or not texts[row].strip()}
        if empty and config.empty == "error":
            raise DataError(_empty_message(split, sorted(empty), str(column)))
        kept = [row for row in kept if row not in empty]
    return kept


def _not_text(split: Split, row: int, column: str, value: Any) -> str:
    return (
        f"{split.where(row)}: {column}={value!r} is a {type(value).__name__}, not text. Is {column!r} the right "
        "column? "
        "If so, write its values as text, in quotes."
    )


def _empty_message(split: Split, rows: list[int], column: str) -> str:
    more = (
        f" So {'is' if len(rows) == 2 else 'are'} {len(rows) - 1:,} more, rows {_row_list(split, rows[1:])}."
        if rows[1:]
        else ""
    )
    return (
        f"{split.where(rows[0])}: the text ({column!r}) is empty.{more} Fill it in or take it out, "
        'or set data.empty = "skip" to leave such rows out.'
    )


def _row_list(split: Split, rows: list[int], most: int = 5) -> str:
    return ", ".join(f"{split.rows[row] + 1:,}" for row in rows[:most]) + (", …" if len(rows) > most else "")


def _raw_labels(split: Split, config: DataConfig) -> RawLabels:
    typed = all(table.typed for table in split.tables)
    names = {table.class_names.get(config.label_columns[0], ()) for table in split.tables}
    if len(names) > 1:
        raise DataError(f"The {split.name} files name different classes: {' and '.join(map(str, names))}.")
    return RawLabels(split.labels, split.where, typed, next(iter(names)))


def _encoded(split: Split, space: LabelSpace, config: DataConfig) -> Split:
    known_from = (
        "" if split.name == "train" else f" ({config.train if isinstance(config.train, str) else config.train[0]})"
    )
    return replace(split, labels=encode_labels(_raw_labels(split, config), space, config, known_from))


def _held_out(train: Split, space: LabelSpace, config: DataConfig, seed: int) -> dict[str, Split]:
    """Splits cut off the training rows; which rows depends on the seed and the rows' number and labels alone."""
    shares = {"validation": config.validation_fraction, "test": config.test_fraction}
    shares = {name: share for name, share in shares.items() if share}
    if not shares:
        return {}
    chosen: dict[str, list[int]] = {name: [] for name in ("train", *shares)}
    seen = 0
    for group in _groups(train, space):
        random.Random(f"{seed} {group[0]}").shuffle(group)
        seen, begin = seen + len(group), 0
        for name, share in shares.items():
            # Running totals give small classes their share too; one row of each class stays for training.
            count = min(round(share * seen) - len(chosen[name]), len(group) - 1 - begin)
            chosen[name] += group[begin : begin + max(count, 0)]
            begin += max(count, 0)
        chosen["train"] += group[begin:]
    for name in shares:
        if not chosen[name]:
            raise DataError(
                f"data.{name}_fraction of {len(train):,} rows holds out none: raise it, or give a {name} file."
            )
    return {name: train.take(sorted(samples), name) for name, samples in chosen.items()}


def _groups(train: Split, space: LabelSpace) -> list[list[int]]:
    """Samples by class, so that each split has each class in proportion; one group where there are no classes."""
    if space.problem != "single_label":
        return [list(range(len(train)))]
    groups: dict[Any, list[int]] = {}
    for sample, label in enumerate(train.labels):
        groups.setdefault(label, []).append(sample)
    return list(groups.values())


def _check_train(train: Split, splits: dict[str, Split], space: LabelSpace, config: DataConfig) -> None:
    check_variety(train.labels, space, train.tables[0].source)
    if space.problem != "single_label":
        return
    present = set(train.labels)
    for split in splits.values():
        for sample, label in enumerate(split.labels):
            if label not in present:  # a class that the data set names but no training row has
                raise DataError(
                    f"{split.where(sample)}: no training row has the label {space.names[label]!r}, so it cannot be "
                    "learned. "
                    "Add rows with it to data.train, or take it out here."
                )


# Notes


def _label_notes(train: Split, space: LabelSpace) -> list[str]:
    if space.problem == "regression":
        values = train.labels
        return [f"targets: {min(values):g} to {max(values):g}, mean {sum(values) / len(values):.4g}"]
    counts = _class_counts(train, space)
    rows = len(train)
    most, least = (
        counts.most_common(1)[0],
        min(((name, counts[name]) for name in space.names), key=lambda pair: pair[1]),
    )
    notes = [
        f"labels: {len(space.names)}, most frequent {most[0]!r} ({most[1]:,} of {rows:,} rows, {most[1] / rows:.0%}), "
        f"rarest {least[0]!r} ({least[1]:,})"
    ]
    rare = [name for name in space.names if counts[name] < RARE_CLASS_ROWS]
    if rare:
        notes.append(f"rare: {len(rare)} labels have under {RARE_CLASS_ROWS} training rows: {', '.join(rare[:8])}")
    return notes + _alike_notes(space.names)


def _class_counts(train: Split, space: LabelSpace) -> Counter[str]:
    if space.problem == "single_label":
        return Counter(space.names[label] for label in train.labels)
    return Counter(name for flags in train.labels for name, flag in zip(space.names, flags, strict=True) if flag)


def _alike_notes(names: Sequence[str]) -> list[str]:
    """Labels that differ in case or spaces only are most likely one label written two ways."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(name.casefold().split()), []).append(name)
    pairs = [group for group in alike.values() if len(group) > 1]
    return [f"labels that differ only in case or spaces are kept apart: {pairs}"] if pairs else []


def _overlap_notes(splits: dict[str, Split]) -> list[str]:
    """Texts of validation and test that are in training too make the figures look better than they are."""
    seen = {(text, pair) for text, pair in _keys(splits["train"])}
    notes = []
    for name, split in splits.items():
        shared = sum(key in seen for key in _keys(split)) if name != "train" else 0
        if shared:
            notes.append(f"{name}: {shared:,} of {len(split):,} texts are in the training rows too")
    return notes


def _keys(split: Split) -> list[tuple[str, str]]:
    return list(zip(split.texts, split.pairs or [""] * len(split), strict=True))
