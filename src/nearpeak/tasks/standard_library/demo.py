"""The demo from end to end: read, compare the first steps, train on, score.

Learns which module of the standard library a snippet comes from. Everything runs on the CPU, offline, inside a budget
of seconds; how many steps fit is decided once, from measured steps, before training starts.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nearpeak.errors import SettingError
from nearpeak.plan import Plan
from nearpeak.reason import Reason
from nearpeak.tasks.standard_library import tutorial
from nearpeak.tasks.standard_library.ladder import Ladder, climb, make_job
from nearpeak.tasks.standard_library.model import make_model, score
from nearpeak.tasks.standard_library.snippets import Corpus, Snippet, read_corpus
from nearpeak.tasks.standard_library.threads import threads_now, using_threads
from nearpeak.tasks.standard_library.tokenizer import MOST_TOKENS, VOCABULARY, train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from torch.nn import Module

__all__ = ["TOLERANCE", "Demo", "Settings", "Trained", "Watcher", "run_demo"]

TOLERANCE = 1e-4
"""Largest relative difference of fp32 losses that rounding explains over a few steps."""
COMPARED_STEPS = 3
SHARE_COMPARED = 0.35
"""Of the budget: how much comparing may take; the rest goes to training and scoring."""
SHARE_KEPT = 0.2
"""Of the time left for training: kept back, since a shared machine may get slower."""
MOST_EPOCHS = 6
"""Where the machine is fast: beyond, the model only learns the training snippets by heart."""
FEWEST_STEPS = 8
CALIBRATING_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be changed; the defaults are the demo."""

    seconds: float = 165.0
    """Wall time from start to table; the three minutes promised, less room for starting up."""
    classes: int = 24
    most_per_class: int = 400
    layers: int = 2
    hidden: int = 256
    seed: int = 0
    library: Path | None = None
    """Another standard library to read than the interpreter's own."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds >= 5):
            raise SettingError(f"seconds={self.seconds}: the demo needs at least 5; 60 and more give a useful model.")
        if self.classes < 2:
            raise SettingError(f"classes={self.classes}: telling modules apart takes at least 2.")


@dataclass(frozen=True, slots=True)
class Trained:
    """The training after the comparison."""

    optimizer_steps: int
    reason: Reason
    """Why so many steps."""
    epochs: float
    wall_s: float
    cpu_s: float
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Demo:
    """Everything that was measured."""

    settings: Settings
    corpus: Corpus
    vocabulary: int
    lengths: tuple[int, ...]
    """Tokens of each training snippet."""
    parameters: int
    ladder: Ladder
    plan: Plan
    """The plan of the training: the fastest rung of the ladder."""
    trained: Trained
    accuracy: float
    majority: float
    """Accuracy of always naming the commonest module."""
    wall_s: float
    cpu_s: float

    @property
    def deviation(self) -> float:
        """Largest relative difference of an fp32 loss from the tutorial's."""
        rungs = self.ladder.rungs[1:]
        return max(self.ladder.deviation(rung) for rung in rungs if rung.precision == "fp32")

    @property
    def same_losses(self) -> bool:
        """Whether the fp32 losses are those of the tutorial's loop, up to rounding."""
        return self.deviation <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Watcher:
    """Where progress goes: sentences, and bars as `nearpeak.report.terminal.progress` makes them."""

    say: Callable[[str], None]
    bar: Callable[[int, str], AbstractContextManager[Any]]

    @staticmethod
    def silent() -> Watcher:
        """Progress for nobody."""
        return Watcher(lambda message: None, lambda total, description: _no_bar())


class _NoBar:
    def advance(self, steps: int = 1, **fields: object) -> None:
        """Nothing to show."""


@contextmanager
def _no_bar() -> Iterator[_NoBar]:
    yield _NoBar()


class _Clock:
    """Wall and CPU seconds since the start, and what is left of the budget."""

    def __init__(self, budget_s: float):
        self.budget_s, self._wall, self._cpu = budget_s, time.perf_counter(), time.process_time()

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._cpu

    @property
    def left_s(self) -> float:
        return self.budget_s - self.wall_s


def run_demo(settings: Settings | None = None, watcher: Watcher | None = None) -> Demo:
    """Run the whole demo."""
    settings, watcher = settings or Settings(), watcher or Watcher.silent()
    clock = _Clock(settings.seconds)
    corpus, tokenizer, train, held_out = _data(settings, watcher)
    model = make_model(
        len(tokenizer), len(corpus.modules), layers=settings.layers, hidden=settings.hidden, seed=settings.seed
    )
    threads, why_threads = threads_now()
    with using_threads(threads):
        ladder = _compare(model, train, tokenizer, settings, clock, watcher)
        plan, step_s = _calibrate(ladder, model, train, why_threads, settings.seed)
    steps, reason = _steps_that_fit(step_s, clock, len(train), len(held_out))
    watcher.say(str(reason))
    trained = _train(copy.deepcopy(model), train, plan, steps, reason, held_out, settings, watcher)
    return Demo(
        settings=settings,
        corpus=corpus,
        vocabulary=len(tokenizer),
        lengths=tuple(len(sample["input_ids"]) for sample in train),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        ladder=ladder,
        plan=plan,
        trained=trained[0],
        accuracy=trained[1],
        majority=_majority(corpus),
        wall_s=clock.wall_s,
        cpu_s=clock.cpu_s,
    )


def _data(settings: Settings, watcher: Watcher) -> tuple[Corpus, Any, list[dict[str, Any]], list[dict[str, Any]]]:
    """Snippets, the tokenizer trained on them, and both splits in tokens."""
    corpus = read_corpus(
        settings.library, classes=settings.classes, most_per_class=settings.most_per_class, progress=watcher.say
    )
    watcher.say(f"training a tokenizer on {len(corpus.train):,} snippets of {len(corpus.modules)} modules")
    tokenizer = train_tokenizer([snippet.text for snippet in corpus.train], VOCABULARY)
    return corpus, tokenizer, _encode(tokenizer, corpus.train), _encode(tokenizer, corpus.held_out)


def _encode(tokenizer: Any, snippets: tuple[Snippet, ...]) -> list[dict[str, Any]]:
    encoded = tokenizer([snippet.text for snippet in snippets], truncation=True, max_length=MOST_TOKENS)
    rows = zip(encoded["input_ids"], encoded["attention_mask"], snippets, strict=True)
    return [{"input_ids": ids, "attention_mask": mask, "labels": snippet.label} for ids, mask, snippet in rows]


def _compare(
    model: Module, train: list[dict[str, Any]], tokenizer: Any, settings: Settings, clock: _Clock, watcher: Watcher
) -> Ladder:
    """The first steps, by every rung of the ladder."""
    usual = f"batch {tutorial.BATCH} × accumulation {tutorial.ACCUMULATION}, padding to {MOST_TOKENS}, fp32"
    watcher.say(f"the first steps as tutorials make them ({usual}) and as nearpeak does, in turn")

    with watcher.bar(COMPARED_STEPS, "Comparing") as bar:

        def made(name: str, wall_s: float, step: int, last: bool) -> None:
            watcher.say(f"  step {step + 1}, {name}: {wall_s:.2f} s")
            bar.advance(int(last))

        budget_s = SHARE_COMPARED * clock.budget_s
        steps = min(COMPARED_STEPS, len(train) // tutorial.GLOBAL_BATCH)
        return climb(model, train, tokenizer, most_steps=steps, budget_s=budget_s, seed=settings.seed, made=made)


def _calibrate(
    ladder: Ladder, model: Module, train: list[dict[str, Any]], threads: Reason, seed: int
) -> tuple[Plan, float]:
    """The fastest rung's plan, and the wall seconds of a step with it on some more windows."""
    import torch

    from nearpeak.train.run import Run

    fastest = ladder.fastest()
    assert fastest.plan is not None
    because = "it took the fewest CPU seconds of all rungs on the same windows (a tie goes to the earlier one)."
    reasons = (Reason("plan=" + fastest.name, because), threads)
    plan = replace(fastest.plan, threads=torch.get_num_threads(), reasons=reasons)
    steps = max(1, min(CALIBRATING_STEPS, len(train) // tutorial.GLOBAL_BATCH))
    run = Run(make_job(copy.deepcopy(model), train, steps, seed), plan, device="cpu")
    start = time.perf_counter()
    made = sum(1 for _ in run)
    # The slower of the two measurements: on a shared machine the next minutes may be like either.
    return plan, max((time.perf_counter() - start) / made, fastest.wall_s_per_step)


def _steps_that_fit(step_s: float, clock: _Clock, train: int, held_out: int) -> tuple[int, Reason]:
    """How many optimizer steps the rest of the budget holds; decided once, before the first of them."""
    scoring_s = step_s / 2 * held_out / tutorial.GLOBAL_BATCH  # forward only, padded to neighbours
    left_s = max(0.0, clock.left_s - scoring_s) * (1 - SHARE_KEPT)
    fitting, most = int(left_s / step_s), MOST_EPOCHS * train // tutorial.GLOBAL_BATCH
    steps = max(FEWEST_STEPS, min(fitting, most))
    because = (
        f"{max(0.0, clock.left_s):.0f} of {clock.budget_s:.0f} s are left, {scoring_s:.0f} of them for scoring, "
        f"{SHARE_KEPT:.0%} of the rest is kept back, and a step takes {step_s:.3f} s: {fitting} steps fit. At most "
        f"{MOST_EPOCHS} epochs ({most} steps) are worth while, at least {FEWEST_STEPS} steps are made. Fixed before "
        "training starts."
    )
    return steps, Reason(f"optimizer_steps={steps}", because, {"step_s": step_s, "left_s": left_s, "fitting": fitting})


def _train(
    model: Module,
    train: list[dict[str, Any]],
    plan: Plan,
    steps: int,
    reason: Reason,
    held_out: list[dict[str, Any]],
    settings: Settings,
    watcher: Watcher,
) -> tuple[Trained, float]:
    """The job from its first step to its last with nearpeak alone, then the accuracy on held-out snippets."""
    from nearpeak.train.run import Run

    run = Run(make_job(model, train, steps, settings.seed), plan, device="cpu")
    clock, losses = _Clock(settings.seconds), []
    with watcher.bar(steps, "Training") as bar, closing(iter(run)) as made:  # type: ignore[type-var]
        for step in made:
            losses.append(step.loss)
            bar.advance(loss=step.loss)
            if (step.index + 1) % max(1, steps // 5) == 0:
                watcher.say(f"  step {step.index + 1} of {steps}: loss {step.loss:.3f}, {clock.wall_s:.0f} s")
    trained = Trained(
        optimizer_steps=len(losses),
        reason=reason,
        epochs=steps * tutorial.GLOBAL_BATCH / len(train),
        wall_s=clock.wall_s,
        cpu_s=clock.cpu_s,
        losses=tuple(losses),
    )
    return trained, _accuracy(model, held_out, plan, watcher)


def _accuracy(model: Module, held_out: list[dict[str, Any]], plan: Plan, watcher: Watcher) -> float:
    watcher.say(f"scoring {len(held_out):,} held-out snippets")
    right = 0
    with watcher.bar(len(held_out), "Scoring") as bar:
        for samples, hits in score(model, held_out, plan):
            right += hits
            bar.advance(samples)
    return right / len(held_out)


def _majority(corpus: Corpus) -> float:
    """Accuracy on the held-out snippets of naming the commonest training label every time."""
    labels = [snippet.label for snippet in corpus.train]
    commonest = max(range(len(corpus.modules)), key=labels.count)
    return sum(snippet.label == commonest for snippet in corpus.held_out) / len(corpus.held_out)
