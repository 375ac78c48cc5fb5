"""How good predictions are: small numpy functions, each of which can be checked by hand.

Where a figure is undefined (a correlation with a constant, a class that nobody has or predicts) it is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["BETTER_LOW", "DEFAULT_METRIC", "METRICS", "is_better", "pearson", "score", "spearman"]

METRICS: dict[str, tuple[str, ...]] = {
    "single_label": ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "loss"),
    "multi_label": ("micro_f1", "macro_f1", "accuracy", "hamming_accuracy", "loss"),
    "regression": ("rmse", "mae", "r2", "pearson", "spearman", "loss"),
}
DEFAULT_METRIC = {"single_label": "accuracy", "multi_label": "micro_f1", "regression": "rmse"}
BETTER_LOW = ("loss", "rmse", "mae")


def score(problem: str, logits: Any, targets: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Every metric of a problem, `per_class` among them where there are classes."""
    logits = np.asarray(logits, dtype=np.float64)
    if problem == "regression":
        return _score_regression(logits.reshape(-1), np.asarray(targets, dtype=np.float64).reshape(-1))
    if problem == "multi_label":
        return _score_multi_label(logits, np.asarray(targets) > 0.5, names)
    return _score_single_label(logits, np.asarray(targets, dtype=np.int64), names)


def is_better(metric: str, found: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool:
    """Whether metrics beat the best so far; at a tie the lower loss does, and an undefined value never."""
    value = found[metric]
    if value is None or best is None or best[metric] is None:
        return value is not None
    if value == best[metric]:
        return found["loss"] < best["loss"]
    return value < best[metric] if metric in BETTER_LOW else value > best[metric]


def _score_single_label(logits: Any, targets: Any, names: Sequence[str]) -> dict[str, Any]:
    predicted = logits.argmax(1)
    classes = np.arange(logits.shape[1])
    per_class = class_counts(predicted[:, None] == classes, targets[:, None] == classes)
    accuracy = float((predicted == targets).mean())
    return {
        "accuracy": accuracy,
        "macro_f1": macro_f1(per_class),
        "micro_f1": accuracy,  # with one label a text, both count the same hits
        "weighted_f1": weighted_f1(per_class),
        "loss": cross_entropy(logits, targets),
        "samples": len(targets),
        "per_class": describe_classes(per_class, names),
    }


def _score_multi_label(logits: Any, targets: Any, names: Sequence[str]) -> dict[str, Any]:
    predicted = logits > 0  # a probability above one half
    per_class = class_counts(predicted, targets)
    return {
        "micro_f1": micro_f1(per_class),
        "macro_f1": macro_f1(per_class),
        "accuracy": float((predicted == targets).all(1).mean()),
        "hamming_accuracy": float((predicted == targets).mean()),
        "loss": binary_cross_entropy(logits, targets),
        "samples": len(targets),
        "per_class": describe_classes(per_class, names),
    }


def _score_regression(predicted: Any, targets: Any) -> dict[str, Any]:
    errors = predicted - targets
    spread = float(((targets - targets.mean()) ** 2).sum())
    return {
        "rmse": float(np.sqrt((errors**2).mean())),
        "mae": float(np.abs(errors).mean()),
        "r2": 1 - float((errors**2).sum()) / spread if spread else None,
        "pearson": pearson(predicted, targets),
        "spearman": spearman(predicted, targets),
        "loss": float((errors**2).mean()),
        "samples": len(targets),
    }


def class_counts(predicted: Any, actual: Any) -> Any:
    """Hits, predictions and occurrences of each class: an array [classes, 3], from flags [samples, classes]."""
    return np.stack([(predicted & actual).sum(0), predicted.sum(0), actual.sum(0)], axis=1)


def describe_classes(counts: Any, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Precision, recall, F1 and number of rows of each class."""
    names = names or [str(place) for place in range(len(counts))]
    return {
        name: {
            "precision": _ratio(hits, predicted),
            "recall": _ratio(hits, actual),
            "f1": _ratio(2 * hits, predicted + actual),
            "rows": int(actual),
        }
        for name, (hits, predicted, actual) in zip(names, counts.tolist(), strict=True)
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def macro_f1(counts: Any) -> float | None:
    """Mean F1 of the classes that occur or are predicted."""
    scores = [_ratio(2 * hits, predicted + actual) for hits, predicted, actual in counts.tolist()]
    known = [value for value in scores if value is not None]
    return sum(known) / len(known) if known else None


def micro_f1(counts: Any) -> float | None:
    """F1 of all decisions together."""
    hits, predicted, actual = counts.sum(0).tolist()
    return _ratio(2 * hits, predicted + actual)


def weighted_f1(counts: Any) -> float | None:
    """Mean F1, each class weighted by its rows."""
    rows = counts[:, 2].sum()
    total = sum(actual * (_ratio(2 * hits, predicted + actual) or 0.0) for hits, predicted, actual in counts.tolist())
    return _ratio(total, float(rows))


def cross_entropy(logits: Any, targets: Any) -> float:
    """Mean negative log likelihood of the true class."""
    shifted = logits - logits.max(1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(targets)), targets]).mean())


def binary_cross_entropy(logits: Any, targets: Any) -> float:
    """Mean over samples and classes, from logits, without overflow."""
    return float((np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))).mean())


def pearson(first: Any, second: Any) -> float | None:
    """Linear correlation; None where one of the two is constant."""
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / scale if scale else None


def spearman(first: Any, second: Any) -> float | None:
    """Rank correlation; equal values share the mean of their ranks."""
    return pearson(mean_ranks(first), mean_ranks(second))


def mean_ranks(values: Any) -> Any:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[places.reshape(-1)]
