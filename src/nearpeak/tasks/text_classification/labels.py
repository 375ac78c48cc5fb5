"""Which problem the labels pose, which classes there are, and the number each label becomes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nearpeak.errors import DataError, SettingError
from nearpeak.reason import Reason
from nearpeak.tasks.text_classification.config import DataConfig
from nearpeak.tasks.text_classification.reading import MISSING

__all__ = ["LabelSpace", "RawLabels", "check_variety", "encode_labels", "learn_labels"]

NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
WHOLE = re.compile(r"\s*[+-]?\d+\s*")
NOT_FINITE = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity", "n/a", "na", "null", "none")
TRUE, FALSE = ("1", "true", "1.0"), ("0", "false", "0.0")
MOST_CLASSES_SHARE = 0.5
"""Above this share of distinct labels, `auto` asks rather than learns to tell rows apart."""
FEWEST_ROWS_TO_ASK = 20


@dataclass(frozen=True, slots=True)
class RawLabels:
    """Labels as the files hold them; a row of several columns is a tuple."""

    values: Sequence[Any]
    where: Callable[[int], str]
    typed: bool
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelSpace:
    """What a label can be."""

    problem: str
    names: tuple[str, ...]
    """Class names in the order of the model's outputs; empty for regression."""
    ids: dict[Any, int]
    """Class number of each raw label value."""

    @property
    def outputs(self) -> int:
        """Width of the model's last layer."""
        return len(self.names) or 1


def learn_labels(labels: RawLabels, config: DataConfig) -> tuple[LabelSpace, Reason]:
    """The problem and its classes, from the training labels alone."""
    if not isinstance(config.label, tuple) and not config.label_separator:
        _refuse_missing(labels, config)
    problem, because = _problem_of(labels, config)
    reason = Reason(f"data.problem={problem}", because)
    if problem == "regression":
        return LabelSpace(problem, (), {}), reason
    if isinstance(config.label, tuple):
        return LabelSpace(problem, config.label, {name: place for place, name in enumerate(config.label)}), reason
    found = _found(labels, config, problem)
    ordered = range(len(labels.class_names)) if labels.class_names else _in_order(found, labels.typed)
    ids = {value: place for place, value in enumerate(ordered)}
    return LabelSpace(problem, labels.class_names or tuple(str(value) for value in ids), ids), reason


def _problem_of(labels: RawLabels, config: DataConfig) -> tuple[str, str]:
    if config.problem != "auto":
        return config.problem, "as set"
    if isinstance(config.label, tuple):
        return "multi_label", f"data.label lists {len(config.label)} columns"
    if config.label_separator:
        return "multi_label", "data.label_separator is set"
    if labels.class_names:
        several = isinstance(labels.values[0], list)
        return ("multi_label" if several else "single_label"), "the data set names its classes"
    return _typed_problem(labels) if labels.typed else _text_problem(labels)


def _typed_problem(labels: RawLabels) -> tuple[str, str]:
    kinds = _kinds(labels)
    if set(kinds) <= {"int", "float"} and "float" in kinds:
        return "regression", 'the labels are decimal numbers; set data.problem = "single_label" if they are classes'
    if len(kinds) > 1:
        raise DataError(_mixed_message(labels, kinds))
    if "list" in kinds:
        return "multi_label", "the labels are lists"
    return "single_label", _classes_sentence(labels, "int" in kinds)


def _text_problem(labels: RawLabels) -> tuple[str, str]:
    """CSV has text only: decimal numbers throughout are quantities, everything else is classes."""
    first = {kind: row for row, kind in reversed([(row, _text_kind(value)) for row, value in enumerate(labels.values)])}
    if "decimal" in first and "word" in first:
        raise DataError(_mixed_message(labels, {"number": first["decimal"], "word": first["word"]}))
    if "decimal" in first:
        return "regression", 'the labels are decimal numbers; set data.problem = "single_label" if they are classes'
    return "single_label", _classes_sentence(labels, set(first) == {"whole"})


def _text_kind(value: str) -> str:
    if WHOLE.fullmatch(value):
        return "whole"
    if NUMBER.fullmatch(value):
        return "decimal"
    return "not finite" if value.strip().lower() in NOT_FINITE else "word"


def _classes_sentence(labels: RawLabels, whole: bool) -> str:
    distinct, rows = len(set(labels.values)), len(labels.values)
    what = "whole numbers" if whole else "names"
    if rows >= FEWEST_ROWS_TO_ASK and distinct > MOST_CLASSES_SHARE * rows:
        raise DataError(
            f"{rows:,} training rows have {distinct:,} different labels ({what}): hardly classes. Is data.label the "
            "right "
            'column? If so, set data.problem to "single_label" or, for quantities, "regression".'
        )
    more = '; set data.problem = "regression" if they are quantities' if whole else ""
    return f"the labels are {distinct:,} different {what}{more}"


def _kinds(labels: RawLabels) -> dict[str, int]:
    """First row of each kind of label value."""
    kinds: dict[str, int] = {}
    for row, value in enumerate(labels.values):
        kinds.setdefault(type(value).__name__, row)
    return kinds


def _mixed_message(labels: RawLabels, kinds: dict[str, int]) -> str:
    shown = "; ".join(f"{labels.where(row)} holds {labels.values[row]!r} ({kind})" for kind, row in kinds.items())
    return f"The labels are of mixed types: {shown}. Write all of them the same way, or set data.problem."


def _refuse_missing(labels: RawLabels, config: DataConfig) -> None:
    missing = [row for row, value in enumerate(labels.values) if _is_missing(value)]
    if missing:
        raise DataError(
            f"{labels.where(missing[0])}: the label ({config.label!r}) is missing{_others(labels, missing)}. "
            "Fill it in or take the row out; labels of unlabelled rows cannot be learned."
        )
    if labels.class_names and any(value == -1 for value in labels.values):
        row = next(row for row, value in enumerate(labels.values) if value == -1)
        raise DataError(
            f"{labels.where(row)}: the label is -1, which stands for a hidden label. Use a split with labels."
        )


def _is_missing(value: Any) -> bool:
    return value is None or value is MISSING or (isinstance(value, str) and not value.strip())


def _others(labels: RawLabels, rows: Sequence[int]) -> str:
    """`, and in 3 more rows: 7, 9, 12`."""
    more = [f"{row + 1:,}" for row in rows[1:6]]
    return f", and in {len(rows) - 1:,} more: row {', '.join(more)}{', …' if len(rows) > 6 else ''}" if more else ""


# Classes


def _found(labels: RawLabels, config: DataConfig, problem: str) -> dict[Any, int]:
    """First row of every class."""
    found: dict[Any, int] = {}
    for row in range(len(labels.values)):
        for item in _classes_of(labels, row, config, problem):
            found.setdefault(item, row)
    _check_one_kind(labels, found)
    return found


def _check_one_kind(labels: RawLabels, found: dict[Any, int]) -> None:
    kinds: dict[str, int] = {}
    for value, row in found.items():
        kinds.setdefault(type(value).__name__, row)
    if len(kinds) > 1:
        raise DataError(_mixed_message(labels, kinds))


def _classes_of(labels: RawLabels, row: int, config: DataConfig, problem: str) -> Iterable[Any]:
    value = labels.values[row]
    if problem == "single_label":
        return (_single_class(value, labels.where, row),)
    if config.label_separator and isinstance(value, str):
        return tuple(part.strip() for part in value.split(config.label_separator) if part.strip())
    if isinstance(value, list):
        return tuple(_single_class(item, labels.where, row) for item in value)
    raise DataError(
        f"{labels.where(row)}: the label {value!r} is not a list. For a multi-label problem give data.label_separator "
        '(such as ";"), a list in each JSON line, or several 0/1 columns as data.label = ["a", "b"].'
    )


def _single_class(value: Any, where: Callable[[int], str], row: int) -> Any:
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)  # whole numbers that passed through a table with gaps come back as floats
    raise DataError(
        f"{where(row)}: the label {value!r} ({type(value).__name__}) is not a class. Classes are names or whole "
        "numbers; "
        'for quantities set data.problem = "regression".'
    )


def _in_order(found: Iterable[Any], typed: bool) -> list[Any]:
    """Numbers by size, names by letter, so that the order of the rows changes nothing."""
    values = list(found)
    if not typed and all(WHOLE.fullmatch(value) for value in values):
        return sorted(values, key=lambda value: (int(value), value))
    return sorted(values)


# Encoding


def encode_labels(labels: RawLabels, space: LabelSpace, config: DataConfig, known_from: str = "") -> list[Any]:
    """The number(s) of every row: class number, 0/1 per class, or the target."""
    if isinstance(config.label, tuple):
        return [_flags(labels, row, config.label) for row in range(len(labels.values))]
    if not config.label_separator:
        _refuse_missing(labels, config)
    if space.problem == "regression":
        return [_target(labels, row) for row in range(len(labels.values))]
    encoded = [_class_numbers(labels, row, space, config, known_from) for row in range(len(labels.values))]
    if space.problem == "single_label":
        return [numbers[0] for numbers in encoded]
    return [[1.0 if place in numbers else 0.0 for place in range(len(space.names))] for numbers in encoded]


def _class_numbers(labels: RawLabels, row: int, space: LabelSpace, config: DataConfig, known_from: str) -> list[int]:
    numbers = []
    for value in _classes_of(labels, row, config, space.problem):
        if value not in space.ids:
            raise DataError(
                f"{labels.where(row)}: the label {value!r} does not occur in the training rows{known_from}, so it "
                "cannot be "
                f"learned. Those have {_shown(space.names)}. Add rows with it to data.train, or take it out here."
            )
        numbers.append(space.ids[value])
    return numbers


def _shown(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def _flags(labels: RawLabels, row: int, columns: Sequence[str]) -> list[float]:
    return [_flag(value, labels.where, row, column) for value, column in zip(labels.values[row], columns, strict=True)]


def _flag(value: Any, where: Callable[[int], str], row: int, column: str) -> float:
    text = str(value).strip().lower()
    if text in TRUE or text in FALSE:
        return float(text in TRUE)
    raise DataError(f"{where(row)}: {column}={value!r}: a multi-label column holds 0 or 1 (or true or false).")


def _target(labels: RawLabels, row: int) -> float:
    value = labels.values[row]
    number = _number(value, labels.typed)
    if number is None:
        comma = (
            " Decimal points are points, not commas."
            if isinstance(value, str) and re.fullmatch(r"\d+,\d+", value)
            else ""
        )
        raise DataError(f"{labels.where(row)}: the target {value!r} is not a number, as a regression needs.{comma}")
    if not math.isfinite(number):
        raise DataError(
            f"{labels.where(row)}: the target is {value!r}. A regression needs finite numbers: fill it in or drop "
            "the row."
        )
    return number


def _number(value: Any, typed: bool) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if typed or not isinstance(value, str):
        return None
    if NUMBER.fullmatch(value):
        return float(value)
    return math.nan if value.strip().lower() in NOT_FINITE else None


def check_variety(encoded: Sequence[Any], space: LabelSpace, source: str) -> None:
    """There is something to tell apart."""
    if any(value != encoded[0] for value in encoded):
        return
    if space.problem == "regression":
        raise DataError(f"{source}: all {len(encoded):,} targets are {encoded[0]:g}: there is nothing to learn.")
    chosen = (
        encoded[0] if isinstance(encoded[0], list) else [float(place == encoded[0]) for place in range(space.outputs)]
    )
    label = ", ".join(name for name, flag in zip(space.names, chosen, strict=True) if flag) or "(none)"
    raise DataError(
        f"{source}: all {len(encoded):,} rows have the same label, {label!r}: there is nothing to tell apart. Is "
        "data.label "
        "the right column, and does the file hold the other labels too?"
    )


def check_problem(config: DataConfig, labels: RawLabels) -> None:
    """A multi-label problem in one text column needs its separator."""
    if (
        config.problem == "multi_label"
        and not labels.typed
        and not config.label_separator
        and isinstance(config.label, str)
    ):
        raise SettingError('data.problem="multi_label" with one CSV column needs data.label_separator, such as ";".')
