"""Is one run faster than another, or does it only look so? Steps follow each other and are not independent draws.

A slow stretch (a neighbour on the machine, an evaluation every hundred steps, a warm device) lasts for many steps, so
the usual error of a mean is far too small. Whole blocks of steps are drawn again and again instead, as long as what
they share (Politis and White's rule), and the interval of the ratio is read off; with few blocks it is widened as
Student's t is. What differs between two runs as a whole, such as another machine, no interval inside a run can see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.diagnose.reduce_recording import first_steps
from nearpeak.diagnose.step_columns import StepColumns
from nearpeak.forecast import Interval
from nearpeak.recording import PHASES, Recording
from nearpeak.recording.process_facts import ProcessFacts

__all__ = [
    "CONFIDENCE",
    "Comparison",
    "PhaseChange",
    "Run",
    "block_length",
    "compare",
    "compare_recordings",
]

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
FEWEST_BLOCKS = 6
"""With fewer independent stretches of steps in a run nothing can be told."""
RESAMPLES = 2000
MOST_BLOCKS = 500
"""Of long runs longer blocks are drawn: it costs nothing but a little width."""
SAME_SIZE = 0.01
"""Steps whose samples differ by more are compared by sample."""
SMALLEST_CHANGE = 0.002
"""Of the step's time: what is surely a change, but smaller than this, is none that matters."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is compared of a run: its steps after the first ones, mean over the ranks."""

    name: str
    wall_ms: Floats
    phase_ms: dict[str, Floats]
    samples: Floats | None
    """Per step, all ranks together; None where they were not counted."""
    setup: dict[str, object]


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """How one phase's mean time changed, in milliseconds per unit; together they make up the whole change."""

    phase: str
    first_ms: float
    second_ms: float
    change_ms: Interval
    is_real: bool
    """Whether the interval, widened for there being several phases, leaves out zero."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second run against the first."""

    unit: str
    """What times are of: `step`, or `sample` where the runs' steps are of different size."""
    first_ms: float
    second_ms: float
    ratio: Interval | None
    """Second over first, below 1 where the second is faster; None where too few steps were seen."""
    verdict: str
    """`faster`, `slower`, `no difference can be told`, `too few steps`."""
    steps: tuple[int, int]
    independent: tuple[float, float]
    """How many steps that know nothing of each other those are worth."""
    phases: tuple[PhaseChange, ...]
    setup: tuple[tuple[str, object, object], ...]
    """What differs in how they were set up: name, first, second."""


def compare_recordings(first: Recording, second: Recording) -> Comparison:
    """Compare two recorded runs."""
    return compare(_read_run(first), _read_run(second))


def _read_run(recording: Recording) -> Run:
    """Its longest job, without the first steps."""
    by_process = StepColumns.read(recording)
    longest = max(map(len, by_process.values()), default=0)
    members = [columns for columns in by_process.values() if len(columns) == longest]
    setups = [ProcessFacts.from_json(each.facts) for each in recording.processes[:1]]
    if not members:
        return Run(str(recording.folder), np.empty(0), {}, None, _flat(setups))
    begin = first_steps(members[0].wall_ms)
    named = {phase: f"{phase}_ms" for phase in PHASES}
    phases = {p: _mean(members, column) for p, column in named.items() if any(column in m.values for m in members)}
    samples = None
    if all("samples" in each.values for each in members):
        samples = np.sum([each.values["samples"] for each in members], axis=0)[begin:]
    return Run(
        str(recording.folder),
        np.mean([each.wall_ms for each in members], axis=0)[begin:],
        {phase: values[begin:] for phase, values in phases.items()},
        samples,
        _flat(setups),
    )


def compare(first: Run, second: Run, *, seed: int = 0) -> Comparison:
    """Ratio of the mean times with its interval, and which phases made the difference."""
    unit, weights = _unit(first, second)
    runs = [_Steps(run, weight) for run, weight in zip((first, second), weights, strict=True)]
    means = (runs[0].mean(runs[0].wall_ms), runs[1].mean(runs[1].wall_ms))
    independent = (runs[0].blocks, runs[1].blocks)
    changed = _changed_setup(first.setup, second.setup)
    if min(independent) < FEWEST_BLOCKS or min(means) <= 0:
        steps = (len(first.wall_ms), len(second.wall_ms))
        return Comparison(unit, means[0], means[1], None, "too few steps", steps, independent, (), changed)
    random = np.random.default_rng(seed)
    drawn = [each.draw(random) for each in runs]
    ratio = _ratio([each.resampled(each.wall_ms, d) for each, d in zip(runs, drawn, strict=True)], means, runs)
    return Comparison(
        unit,
        means[0],
        means[1],
        ratio,
        _verdict(ratio),
        (len(first.wall_ms), len(second.wall_ms)),
        independent,
        _phases(first, second, runs, drawn),
        changed,
    )


# -- blocks of steps ---------------------------------------------------------------------------------------------------


class _Steps:
    """The steps of a run, to be drawn in blocks."""

    def __init__(self, run: Run, weights: Floats) -> None:
        self.wall_ms, self.weights = run.wall_ms, weights
        shared = block_length(run.wall_ms - self.mean(run.wall_ms) * weights) if len(weights) else 1
        # The rule's length is the best for a variance; an interval holds what it promises with blocks twice as long.
        longer = 1 if shared == 1 else min(2 * shared, max(shared, len(weights) // FEWEST_BLOCKS))
        self.length = max(longer, math.ceil(len(weights) / MOST_BLOCKS))

    @property
    def blocks(self) -> float:
        """How many stretches that know nothing of each other the run has."""
        return len(self.wall_ms) / self.length

    def mean(self, values: Floats) -> float:
        """Per unit."""
        total = float(self.weights.sum())
        return float(values.sum()) / total if total > 0 else 0.0

    def draw(self, random: np.random.Generator) -> NDArray[np.intp]:
        """Where the blocks of each resample begin; a block that runs over the end goes on at the begin."""
        return random.integers(0, len(self.wall_ms), (RESAMPLES, math.ceil(len(self.wall_ms) / self.length)))

    def resampled(self, values: Floats, drawn: NDArray[np.intp]) -> Floats:
        """The mean per unit in each resample."""
        return self._sums(values)[drawn].sum(axis=1) / self._sums(self.weights)[drawn].sum(axis=1)

    def _sums(self, values: Floats) -> Floats:
        """Of the block that begins at each step."""
        running = np.concatenate([[0.0], np.concatenate([values, values[: self.length]]).cumsum()])
        return running[self.length : self.length + len(values)] - running[: len(values)]


def block_length(values: Floats) -> int:
    """Steps that share their ups and downs: Politis and White (2004), as corrected in 2009, for circular blocks."""
    count = len(values)
    if count < 4 or not np.ptp(values) > 0:
        return 1
    longest = min(count - 1, math.ceil(math.sqrt(count)) + max(5, math.ceil(math.log10(count))))
    covariances = _autocovariances(values, longest)
    correlations = covariances / covariances[0]
    reach = min(longest, 2 * _last_correlated(correlations, count))
    lags = np.arange(1, reach + 1)
    taper = np.clip(2 * (1 - lags / max(1, reach)), 0, 1)
    spectrum = covariances[0] + 2 * float((taper * covariances[1 : reach + 1]).sum())
    slope = 2 * float((taper * lags * covariances[1 : reach + 1]).sum())
    if spectrum <= 0:
        return 1
    best = (2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * count ** (1 / 3)
    return int(min(max(1, math.ceil(best)), max(1, count // 4)))


def _autocovariances(values: Floats, longest: int) -> Floats:
    centred = values - values.mean()
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    return np.fft.irfft(spectrum, size)[: longest + 1] / len(centred)


def _last_correlated(correlations: Floats, count: int) -> int:
    """The lag after which correlations stay within noise for a while."""
    noise = 2 * math.sqrt(math.log10(count) / count)
    quiet_for = max(5, math.ceil(math.sqrt(math.log10(count))))
    loud = np.flatnonzero(np.abs(correlations[1:]) > noise) + 1
    if not len(loud):
        return 1
    lags = np.concatenate([[0], loud, [len(correlations) + quiet_for]])
    first_silence = int(np.flatnonzero(np.diff(lags) > quiet_for)[0])
    return max(1, int(lags[first_silence]))


# -- intervals ---------------------------------------------------------------------------------------------------------


def _ratio(resampled: list[Floats], means: tuple[float, float], runs: Sequence[_Steps]) -> Interval:
    """On the logarithm, where a ratio is symmetric."""
    likely = math.log(means[1] / means[0])
    low, high = _interval(np.log(resampled[1]) - np.log(resampled[0]), likely, runs, CONFIDENCE)
    return Interval(math.exp(low), math.exp(likely), math.exp(high))


def _interval(resampled: Floats, likely: float, runs: Sequence[_Steps], confidence: float) -> tuple[float, float]:
    """Quantiles of the resamples, widened as Student's t is wider than a normal with so few blocks."""
    low, high = np.quantile(resampled, ((1 - confidence) / 2, (1 + confidence) / 2))
    freedom = max(1.0, min(run.blocks for run in runs) - 1)
    wider = _student_over_normal(confidence, freedom) * math.sqrt((freedom + 1) / freedom)
    return min(likely, likely + wider * (float(low) - likely)), max(likely, likely + wider * (float(high) - likely))


def _student_over_normal(confidence: float, freedom: float) -> float:
    """Cornish and Fisher's expansion of Student's quantile, over the normal one; exact to a per cent from four on."""
    from statistics import NormalDist

    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return (z + first / freedom + second / freedom**2 + third / freedom**3) / z


def _verdict(ratio: Interval) -> str:
    if abs(ratio.likely - 1) < SMALLEST_CHANGE or ratio.low <= 1 <= ratio.high:
        return "no difference can be told"
    return "faster" if ratio.likely < 1 else "slower"


def _phases(
    first: Run, second: Run, runs: Sequence[_Steps], drawn: Sequence[NDArray[np.intp]]
) -> tuple[PhaseChange, ...]:
    """Each phase on its own; the confidence is that of all of them together (Šidák)."""
    common = [phase for phase in PHASES if phase in first.phase_ms and phase in second.phase_ms]
    found = [p for p in common if first.phase_ms[p].any() or second.phase_ms[p].any()]
    confidence = CONFIDENCE ** (1 / len(found)) if found else CONFIDENCE
    return tuple(_phase(phase, first, second, runs, drawn, confidence) for phase in found)


def _phase(
    phase: str,
    first: Run,
    second: Run,
    runs: Sequence[_Steps],
    drawn: Sequence[NDArray[np.intp]],
    confidence: float,
) -> PhaseChange:
    values = [np.nan_to_num(run.phase_ms[phase]) for run in (first, second)]
    means = [steps.mean(own) for steps, own in zip(runs, values, strict=True)]
    before, after = (s.resampled(own, d) for s, own, d in zip(runs, values, drawn, strict=True))
    likely = means[1] - means[0]
    low, high = _interval(after - before, likely, runs, confidence)
    return PhaseChange(phase, means[0], means[1], Interval(low, likely, high), not low <= 0 <= high)


# -- what is compared --------------------------------------------------------------------------------------------------


def _unit(first: Run, second: Run) -> tuple[str, tuple[Floats, Floats]]:
    """Steps of the same size are compared as they are; else what one sample took."""
    steps = (np.ones(len(first.wall_ms)), np.ones(len(second.wall_ms)))
    if first.samples is None or second.samples is None or not len(first.samples) or not len(second.samples):
        return "step", steps
    sizes = float(np.nanmean(first.samples)), float(np.nanmean(second.samples))
    if not all(np.isfinite(run.samples).all() for run in (first, second) if run.samples is not None) or min(sizes) <= 0:
        return "step", steps
    if abs(sizes[0] / sizes[1] - 1) <= SAME_SIZE:
        return "step", steps
    return "sample", (first.samples, second.samples)


def _mean(members: Sequence[StepColumns], column: str) -> Floats:
    missing = np.full(len(members[0]), np.nan)
    rows = np.array([each.values.get(column, missing) for each in members])
    known = np.isfinite(rows)
    return np.where(known, rows, 0.0).sum(axis=0) / np.maximum(1, known.sum(axis=0))


def _flat(setups: Sequence[ProcessFacts]) -> dict[str, object]:
    """All settings by name, those of nested tables too."""
    flat: dict[str, object] = {}
    for setup in setups:
        for name, value in asdict(setup).items():
            inner = value if isinstance(value, dict) else None
            flat |= {name: value} if inner is None else {f"{name}.{key}": each for key, each in inner.items()}
    return flat


def _changed_setup(first: dict[str, object], second: dict[str, object]) -> tuple[tuple[str, object, object], ...]:
    names = [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]
    return tuple((name, first.get(name), second.get(name)) for name in names)
