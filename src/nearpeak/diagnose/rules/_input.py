"""Why a run waits for its input: one cause, which one of the `input_…` rules tells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import HIDDEN_INPUT, LEFT_OUT_INPUT, MOST, gain_of
from nearpeak.diagnose.rules._common import Place, hottest, share_of_places, users_frame
from nearpeak.diagnose.run_facts import PlaceFacts, RunFacts
from nearpeak.forecast import Interval

__all__ = ["SMALLEST_WAIT", "InputWait", "input_wait"]

SMALLEST_WAIT = 0.05
"""Of the step: XProf calls waiting for input moderate from 5 %; below, the loader's own hand-over takes as much."""
HAND_OVER = 0.2
"""Taking a batch from a worker costs its copy through shared memory and a wake-up, up to this share of a short step;
more workers do not change that."""
BEHIND = 0.7
"""Workers whose fetching takes less than this part of the step have time to spare."""
MAIN_PART = 0.5
"""A cause that explains half of the wait, or half of the samples met in fetching, is the one that is told."""
TOKENISING_PART = 0.3
"""Tokenising shows in fewer samples than it takes: its native part runs without a Python frame of its own."""
SATURATED = 0.9
"""From this share of all cores' time on, more workers only take the cores from each other."""
MOST_READERS = 16
"""Workers that wait for storage need no core each, but each keeps a copy of the dataset object and its batches."""
TOKENISERS = ("tokenization_", "tokenizers/", "sentencepiece", "tiktoken", "youtokentome")
SLOWEST_PACE = 0.2
"""A machine so crowded that a thread has a core less than a fifth of the time tells nothing about storage."""
FETCHING = "torch/utils/data/_utils/fetch.py"
"""In torch, both the dataset and the collator are called from here."""

Cause = Literal["restarts", "tokenising", "collator", "storage", "no_workers", "few_workers", "processing", "bursts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWait:
    """Per step and rank."""

    cause: Cause
    wait_ms: float
    rest_ms: float
    """The step without the wait."""
    fetch_ms: float | None
    """Dataset and collator for the batches of one step, wherever it ran."""
    blocked_share: float | None
    """Of the fetching, how much was on no core: waiting for disks, networks, locks."""
    workers: int
    place: Place | None
    place_share: float
    """Of the samples met in fetching, how many are of the cause."""
    cpu_ms: float | None
    """Of the process and its workers, all threads."""
    cores: int | None

    @property
    def step_ms(self) -> float:
        return self.wait_ms + self.rest_ms

    @property
    def share(self) -> float:
        return self.wait_ms / self.step_ms

    def workers_needed(self) -> int:
        """So many that they fetch as fast as the step takes them, plus one; as far as cores allow."""
        wanted = 1 + math.ceil((self.fetch_ms or self.wait_ms) / max(self.rest_ms, 1e-3))
        if (self.blocked_share or 0.0) >= MAIN_PART:
            return max(self.workers + 1, min(wanted, MOST_READERS))
        return max(1, min(wanted, (self.cores or wanted) - 1))

    def gain_with_workers(self, workers: int) -> Interval:
        """The step takes as long as its slowest part: its own work, the fetching spread over workers, all CPU work
        spread over the cores. What then comes is at least 0.35 of that, as measured; at most the whole wait."""
        after_ms = max(self.rest_ms, (self.fetch_ms or 0.0) / workers)
        if self.cpu_ms is not None and self.cores:
            after_ms = max(after_ms, self.cpu_ms / self.cores)
        likely = min(MOST, max(0.0, 1 - after_ms / self.step_ms))
        return Interval(HIDDEN_INPUT.low * likely, likely, min(MOST, max(likely, self.share)))


def input_wait(facts: Facts) -> InputWait | None:
    """None where the run does not wait for its input, or no run was watched."""
    run = facts.run
    if run is None or run.mean_step_ms <= 0:
        return None
    wait_ms = run.phase_ms.get("input", 0.0)
    if wait_ms / run.mean_step_ms < SMALLEST_WAIT:
        return None
    workers = run.process.loader_workers or 0
    fetch_ms = _fetch_ms(run, workers)
    blocked = _blocked_share(run, workers, fetch_ms)
    cause, part = _cause(run, wait_ms, workers, blocked)
    if cause in ("few_workers", "processing") and not _is_behind(run, workers, fetch_ms):
        if wait_ms / run.mean_step_ms < HAND_OVER:
            return None
        cause = "bursts"
    return InputWait(
        cause=cause,
        wait_ms=wait_ms,
        rest_ms=max(run.mean_step_ms - wait_ms, 1e-3),
        fetch_ms=fetch_ms,
        blocked_share=blocked,
        workers=workers,
        place=hottest(run, "worker" if workers else "input"),
        place_share=part,
        cpu_ms=_cpu_ms(run),
        cores=run.process.cores,
    )


def gain_without(wait: InputWait) -> Interval:
    """The part of the fetching that is the cause is left out, and the wait shrinks with it."""
    return gain_of(wait.share * min(1.0, max(wait.place_share, MAIN_PART)), LEFT_OUT_INPUT)


def _cause(run: RunFacts, wait_ms: float, workers: int, blocked: float | None) -> tuple[Cause, float]:
    phase = "worker" if workers else "input"
    restarts = restart_ms(run) / wait_ms
    tokenising = share_of_places(run, [phase], _is_tokenising) or 0.0
    collating = share_of_places(run, [phase], _is_own_collator) or 0.0
    if workers and restarts >= MAIN_PART:
        return "restarts", restarts
    if tokenising >= TOKENISING_PART:
        return "tokenising", tokenising
    if collating >= MAIN_PART and collating > 1 - MAIN_PART:
        return "collator", collating
    if blocked is not None and blocked >= MAIN_PART and not workers:
        return "storage", blocked
    if not workers:
        return "no_workers", 1.0
    return ("processing" if _is_saturated(run) else "few_workers"), 1.0


def restart_ms(run: RunFacts) -> float:
    """Per step: what starting workers anew took, each time until the first batch came; or what was waited in the steps
    that began with a start (ending the workers before it is a part of that), fetching one batch left out."""
    starts, workers = run.events.get("loader_start"), run.workers
    if starts is None or workers is None or workers.first_batch_ms is None:
        return 0.0
    if workers.seen <= len(run.ranks) * (run.process.loader_workers or 0):  # the same ones all along
        return 0.0
    started_ms = starts.count * workers.first_batch_ms + (starts.total_ms or 0.0)
    waited_ms = (starts.input_ms or 0.0) - starts.count * workers.fetch_ms
    return max(started_ms, waited_ms) / max(1, run.steps_seen - run.first_steps)


def _fetch_ms(run: RunFacts, workers: int) -> float | None:
    if not workers:
        return run.per_step.get("fetch_ms")
    return None if run.workers is None else run.workers.fetch_ms * (run.micro_batches_per_step or 1.0)


def _blocked_share(run: RunFacts, workers: int, fetch_ms: float | None) -> float | None:
    """Of the fetching, what was spent neither on a core nor waiting for one that others held."""
    fetch_cpu_ms = run.per_step.get("fetch_cpu_ms")
    if workers and run.workers is not None and run.workers.fetch_ms > 0:
        on_core = run.workers.fetch_cpu_ms / run.workers.fetch_ms
        rest_ms, rest_cpu_ms = run.mean_step_ms - run.phase_ms.get("input", 0.0), run.per_step.get("main_cpu_ms")
    elif not workers and fetch_ms and fetch_cpu_ms is not None:
        on_core = fetch_cpu_ms / fetch_ms
        rest_ms = run.mean_step_ms - fetch_ms
        rest_cpu_ms = max(0.0, run.per_step.get("main_cpu_ms", 0.0) - fetch_cpu_ms)
    else:
        return None
    return min(1.0, max(0.0, 1 - on_core / _pace(run, rest_ms, rest_cpu_ms)))


def _pace(run: RunFacts, wall_ms: float, cpu_ms: float | None) -> float:
    """How much of its time the training thread had a core while it computed: less than all where other processes want
    the cores too. On a device the thread waits by itself, which says nothing."""
    if not run.on_host or not cpu_ms or wall_ms <= 0:
        return 1.0
    return min(1.0, max(SLOWEST_PACE, cpu_ms / wall_ms))


def _cpu_ms(run: RunFacts) -> float | None:
    own = run.per_step.get("cpu_ms")
    return None if own is None else own + run.per_step.get("worker_cpu_ms", 0.0)


def _is_saturated(run: RunFacts) -> bool:
    cpu_ms, cores = _cpu_ms(run), run.process.cores
    busy = bool(cpu_ms and cores and cpu_ms * len(run.ranks) >= SATURATED * cores * run.mean_step_ms)
    return busy or bool(cores and (run.process.loader_workers or 0) >= 2 * cores)


def _is_behind(run: RunFacts, workers: int, fetch_ms: float | None) -> bool:
    """The workers together take about as long for a step's batches as the step, or longer. Unknown is taken for yes."""
    return fetch_ms is None or not workers or fetch_ms / workers >= BEHIND * run.mean_step_ms


def _is_tokenising(place: PlaceFacts) -> bool:
    return any(name in frame for frame in place.frames for name in TOKENISERS)


def _is_own_collator(place: PlaceFacts) -> bool:
    """Called by the fetcher, not as a dataset, and not torch's own."""
    calls = [position for position, frame in enumerate(place.frames) if FETCHING in frame]
    if not calls or calls[0] == 0:
        return False
    called = place.frames[calls[0] - 1]
    return users_frame([called]) is not None and "__getitem" not in called and "<listcomp>" not in called
