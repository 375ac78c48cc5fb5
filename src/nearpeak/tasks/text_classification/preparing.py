"""From a config to a `Job`: data, model, tokens, optimizer and schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nearpeak.errors import SettingError
from nearpeak.job import Job
from nearpeak.reason import Reason
from nearpeak.tasks.text_classification.config import JobConfig, TrainConfig
from nearpeak.tasks.text_classification.data import TextData, load_data
from nearpeak.tasks.text_classification.encoding import LONGEST_BY_DEFAULT, EncodedTexts, PadBatch, encode_split
from nearpeak.tasks.text_classification.metrics import DEFAULT_METRIC, METRICS
from nearpeak.tasks.text_classification.model import Classifier, build_classifier, keep_class_order, longest_input

__all__ = ["Prepared", "prepare"]

RATES = {True: 5e-5, False: 5e-4}
"""Learning rate by whether the weights come from earlier training."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that training needs."""

    config: TrainConfig
    data: TextData
    classifier: Classifier
    encoded: dict[str, EncodedTexts]
    job: Job
    metric: str
    """What decides which model is kept; "last" keeps the last."""
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]


def prepare(config: TrainConfig, say: Callable[[str], None] = lambda message: None) -> Prepared:
    """Read the data, build the model, tokenise; `say` hears what takes time."""
    say("reading the data")
    data = load_data(config.data, config.job.seed)
    metric = metric_of(config.output.save_best_by, data)
    space = keep_class_order(config.model.name_or_path, data.space, config.model.revision)
    data = _reordered(data, space)
    say("building the model")
    texts = [text for split in (data.train.texts, data.train.pairs or []) for text in split]
    classifier = build_classifier(config.model, data.space, texts, config.job.seed)
    max_length, length_reason = choose_length(config.data.max_length, classifier)
    say(f"tokenising {sum(map(len, data.splits)):,} texts")
    encoded, length_notes = _encode_all(data, classifier, max_length)
    rate, rate_reason = choose_rate(config.job, classifier)
    job = _job(config.job, classifier, encoded["train"], rate)
    reasons = (*data.reasons, length_reason, rate_reason)
    return Prepared(
        config, data, classifier, encoded, job, metric, reasons, (*data.notes, *classifier.notes, *length_notes)
    )


def _job(config: JobConfig, classifier: Classifier, train: EncodedTexts, rate: float) -> Job:
    return Job(
        model=classifier.model,
        data=train,
        loss=classification_loss,
        optimizer=adamw(rate, config.weight_decay),
        global_batch=config.global_batch,
        remainder=config.remainder,
        schedule=SCHEDULES[config.schedule](config.warmup),
        collate=PadBatch(classifier.tokenizer.pad_token_id, classifier.tokenizer.pad_token_type_id),
        seed=config.seed,
        clip_norm=config.clip_norm or None,
        length=token_count,
        **config.length,
    )


def classification_loss(model: Any, batch: Any) -> Any:
    """The model's own loss: cross entropy, binary cross entropy or mean squared error, by its problem_type."""
    return model(**batch).loss


def token_count(sample: Any) -> int:
    """Tokens of a sample, all of them real."""
    return len(sample["input_ids"])


def metric_of(wanted: str, data: TextData) -> str:
    """The metric that decides which model is kept, checked against the problem."""
    problem = data.space.problem
    if wanted == "last" or data.validation is None:
        if wanted not in ("last", "auto"):
            raise SettingError(f"output.save_best_by={wanted!r} needs data.validation or data.validation_fraction.")
        return "last"
    if wanted == "auto":
        return DEFAULT_METRIC[problem]
    if wanted not in METRICS[problem]:
        raise SettingError(
            f"output.save_best_by={wanted!r}: a {problem} problem has {', '.join(METRICS[problem])}; or write auto "
            "or last."
        )
    return wanted


def _reordered(data: TextData, space: Any) -> TextData:
    """The same data with the classes in a model's own order."""
    if space.names == data.space.names:
        return data
    to = [space.names.index(name) for name in data.space.names]
    splits: dict[str, Any] = {
        split.name: replace(split, labels=[_moved(label, to) for label in split.labels]) for split in data.splits
    }
    return replace(data, space=space, **splits)


def _moved(label: Any, to: list[int]) -> Any:
    if isinstance(label, int):
        return to[label]
    flags = [0.0] * len(label)
    for place, flag in enumerate(label):
        flags[to[place]] = flag
    return flags


def choose_length(wanted: int | None, classifier: Classifier) -> tuple[int, Reason]:
    """Most tokens of a text."""
    longest = longest_input(classifier)
    if wanted is not None and longest is not None and wanted > longest:
        raise SettingError(
            f"data.max_length={wanted}: the model takes at most {longest} tokens. Lower it, or leave it out."
        )
    if wanted is not None:
        return wanted, Reason(f"data.max_length={wanted}", "as set")
    chosen = min(longest or LONGEST_BY_DEFAULT, LONGEST_BY_DEFAULT)
    bound = (
        "the model has no more positions"
        if longest == chosen
        else "the usual bound; set data.max_length for longer texts"
    )
    return chosen, Reason(f"data.max_length={chosen}", bound)


def _encode_all(data: TextData, classifier: Classifier, max_length: int) -> tuple[dict[str, EncodedTexts], list[str]]:
    encoded, notes = {}, []
    for split in data.splits:
        tokens, cut = encode_split(split, classifier.tokenizer, max_length, data.space.problem, classifier.keys)
        encoded[split.name] = tokens
        lengths = tokens.lengths
        notes.append(
            f"{split.name}: {len(split):,} texts, {lengths.sum():,} tokens, {lengths.mean():.1f} on average, at most "
            f"{lengths.max()}"
        )
        if cut:
            notes.append(
                f"{split.name}: {cut:,} of {len(split):,} texts are longer than {max_length} tokens and were cut"
            )
    return encoded, notes


def choose_rate(config: JobConfig, classifier: Classifier) -> tuple[float, Reason]:
    """The learning rate."""
    if config.learning_rate is not None:
        return config.learning_rate, Reason(f"job.learning_rate={config.learning_rate:g}", "as set")
    rate = RATES[classifier.trained]
    because = (
        "usual for fine-tuning trained weights" if classifier.trained else "usual for a small model with random weights"
    )
    return rate, Reason(f"job.learning_rate={rate:g}", because)


def adamw(rate: float, weight_decay: float) -> Callable[[Any], Any]:
    """AdamW that decays matrices only: never biases or the gains of norms."""

    def make(model: Any) -> Any:
        from torch.optim import AdamW

        matrices = [weight for weight in model.parameters() if weight.requires_grad and weight.ndim >= 2]
        others = [weight for weight in model.parameters() if weight.requires_grad and weight.ndim < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return AdamW(groups, lr=rate)

    make.__qualname__ = f"AdamW(lr={rate:g}, weight_decay={weight_decay:g})"
    return make


def warmup_steps(warmup: float, optimizer_steps: int) -> int:
    """A share of all steps below 1, else a number of steps."""
    return math.ceil(warmup * optimizer_steps) if warmup < 1 else int(warmup)


def _schedule(name: str, after: Callable[[float], float]) -> Callable[[float], Callable[[Any, int], Any]]:
    """A schedule: linear warmup, then `after` of the share of the remaining steps that is done."""

    def configure(warmup: float) -> Callable[[Any, int], Any]:
        def make(optimizer: Any, optimizer_steps: int) -> Any:
            from torch.optim.lr_scheduler import LambdaLR

            warm = warmup_steps(warmup, optimizer_steps)

            def factor(step: int) -> float:
                if step < warm:
                    return step / max(1, warm)
                return max(0.0, after((step - warm) / max(1, optimizer_steps - warm)))

            return LambdaLR(optimizer, factor)

        make.__qualname__ = f"{name}(warmup={warmup:g})"
        return make

    return configure


SCHEDULES: dict[str, Callable[[float], Callable[[Any, int], Any]]] = {
    "linear": _schedule("linear", lambda done: 1 - done),
    "cosine": _schedule("cosine", lambda done: (1 + math.cos(math.pi * min(done, 1.0))) / 2),
    "constant": _schedule("constant", lambda done: 1.0),
}
