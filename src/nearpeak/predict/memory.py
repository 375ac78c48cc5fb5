"""`MemoryForecast`: what a training step will hold of a GPU's memory, each figure with its interval and its risks."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.forecast import Estimate, Forecast, Interval
from nearpeak.predict.allocator_settings import AllocatorSettings
from nearpeak.predict.cards import DeviceModel, context_bytes
from nearpeak.predict.played import Curve, Played, fits_in, play
from nearpeak.predict.reading import Reading
from nearpeak.predict.step_trace import OutputsUntil, StepTrace, repeated

__all__ = ["STEPS", "MemoryForecast", "Risk", "forecast_memory", "peaks"]

MIB, GIB = 1 << 20, 1 << 30
STEPS = 2
"""Optimizer state comes in the first step; the second is the first that has all."""
LATER_STEPS = 4
"""What the allocator takes after that depends on where small buffers happened to lie: it widens the interval."""
LOW_SHARE, HIGH_SHARE = 0.95, 1.04
"""Of predicted memory, where a step has no convolution. A choice, as wide as what was measured: two training snapshots
of a transformer (reserved within 0.9 %), four runs of two others, and eight runs of five models on an H200, of which
one reserved 4.8 % less than predicted, the others within 2 %. Too few for a percentile."""
CONVOLUTION_LOW_SHARE, CONVOLUTION_HIGH_SHARE = 0.90, 1.15
"""The same with convolutions, chosen on half of the models of timm's script on an A100, with `cudnn.benchmark`: 273 of
their 291 runs lay between these shares of the predicted reserved memory, the one constant beside it apart. Of 280 runs
of the other models, 252 did; 11 lay below and 17 above, most while algorithms were tried."""
CALIBRATED_SHARE = 0.02
"""With a reading, without convolutions: the constant read from any of those four runs gives the others within 1.8 %.
With convolutions a reading takes away the constant and nothing else: their shares stay."""
CONVOLUTION = "convolutions: which algorithm cuDNN picks, and with it the workspace, is not known"
TRIED = (
    "cudnn.benchmark: while algorithms are tried in the first step, about {:.1f} GiB are reserved for moments; what "
    "does not fit is not tried"
)
READING_LEFT = "a reading of the card narrows this: --calibrate used=…"
CALIBRATED_ON = "14 measured runs of eight models without convolutions"
CALIBRATED_ON_CONVOLUTIONS = "571 measured runs of timm's script on an A100"

SMALLEST_OUTPUTS = 0.005
OUTPUTS = (
    "outputs: a loop that lets go of them before the backward pass, as transformers' Trainer does, takes {:,.0f} MiB "
    "less; --outputs-until says how long yours holds them"
)


@dataclass(frozen=True, slots=True)
class Risk:
    """Something that may make the truth differ."""

    name: str
    extra_bytes: int | None = None
    """What the interval's upper end holds for it; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """The three figures that people mean by memory, and what they consist of."""

    allocated: Estimate
    """Tensors: `torch.cuda.max_memory_allocated()`."""
    reserved: Estimate
    """With what the allocator keeps: `torch.cuda.max_memory_reserved()`."""
    device_used: Estimate
    """With the CUDA context: what `nvidia-smi` shows."""
    fits: bool | None
    """None: too close to say, or no card was named."""
    why: str
    """The sentence behind `fits`."""
    by_category: dict[str, int]
    by_module: dict[str, dict[str, int]]
    peak_phase: str
    curve: Curve
    risks: tuple[Risk, ...]
    parameters: int
    trainable_parameters: int
    flops: int
    """Of one step."""

    @property
    def forecast(self) -> Forecast:
        """As other rooms know it."""
        return Forecast(peak_bytes=self.device_used)


def forecast_memory(
    trace: StepTrace,
    card: DeviceModel | None = None,
    *,
    settings: AllocatorSettings | None = None,
    steps: int = STEPS,
    outputs_until: OutputsUntil | None = None,
    extra_device_bytes: int = 0,
    reading: Reading | None = None,
) -> MemoryForecast:
    """From a captured step to figures. `extra_device_bytes` is held outside the allocator, such as by NCCL. Where it
    is not known how long the loop holds the outputs, the longest is likely, and intervals reach to the shortest."""
    held = outputs_until or "next_step"
    several = repeated(trace, steps, outputs_until=held)
    played = play(several, settings)
    shortest = several if outputs_until else repeated(trace, steps, outputs_until="backward")
    least = played if outputs_until else play(shortest, settings)
    shares = _shares(trace, reading)
    context = _context(trace, card, extra_device_bytes, reading)
    allocated = _reaching(_around(played.peak_allocated, shares), low=least.peak_allocated * shares[0])
    later = play(repeated(trace, steps + LATER_STEPS, outputs_until=held), settings)
    tried = _tried_peak(played, card, context)
    reserved = _reaching(
        _around(played.peak_reserved, shares),
        low=least.peak_reserved * shares[0],
        high=max(later.peak_reserved, tried),
    )
    used = Interval(reserved.low + context.low, reserved.likely + context.likely, reserved.high + context.high)
    basis = _basis(trace, reading)
    fits, why = _verdict(several, shortest, card, context, shares, settings)
    return MemoryForecast(
        allocated=Estimate(allocated, basis),
        reserved=Estimate(reserved, basis),
        device_used=Estimate(used, basis),
        fits=fits,
        why=why,
        by_category=played.by_category,
        by_module=played.by_module,
        peak_phase=played.peak_phase,
        curve=played.curve,
        risks=_risks(trace, played, least, tried),
        parameters=trace.parameters,
        trainable_parameters=trace.trainable_parameters,
        flops=trace.flops,
    )


def peaks(
    trace: StepTrace, *, outputs_until: OutputsUntil = "next_step", settings: AllocatorSettings | None = None
) -> Played:
    """The replay alone, for those who have intervals of their own."""
    return play(repeated(trace, STEPS, outputs_until=outputs_until), settings)


def _has_convolutions(trace: StepTrace) -> bool:
    return any(each.name.startswith("convolution") for each in trace.operators)


def _basis(trace: StepTrace, reading: Reading | None) -> str:
    measured = CALIBRATED_ON_CONVOLUTIONS if _has_convolutions(trace) else CALIBRATED_ON
    return measured if reading is None else f"a reading of {reading.used_bytes / MIB:,.0f} MiB and {measured}"


def _context(trace: StepTrace, card: DeviceModel | None, extra: int, reading: Reading | None) -> Interval:
    """A reading says what stands beside the allocator's memory, whatever that is."""
    if reading is not None:
        beside = reading.beside_bytes
        return Interval(beside, beside, beside)
    context = context_bytes(card, convolutions=_has_convolutions(trace))
    return Interval(context.low + extra, context.likely + extra, context.high + extra)


def _shares(trace: StepTrace, reading: Reading | None) -> tuple[float, float]:
    """Between which shares of the predicted memory the real is expected."""
    if _has_convolutions(trace):
        return CONVOLUTION_LOW_SHARE, CONVOLUTION_HIGH_SHARE
    return (LOW_SHARE, HIGH_SHARE) if reading is None else (1 - CALIBRATED_SHARE, 1 + CALIBRATED_SHARE)


def _around(likely: int, shares: tuple[float, float]) -> Interval:
    return Interval(likely * shares[0], likely, likely * shares[1])


def _reaching(interval: Interval, *, low: float, high: float = 0.0) -> Interval:
    return Interval(min(interval.low, low), interval.likely, max(interval.high, high))


def _tried_peak(played: Played, card: DeviceModel | None, context: Interval) -> int:
    """Reserved while algorithms are tried. What does not fit is not tried: it never makes a step fail."""
    if card is None:
        return played.peak_tried
    return max(0, min(played.peak_tried, int(card.memory_bytes - context.low)))


def _risks(trace: StepTrace, played: Played, least: Played, tried_bytes: int) -> tuple[Risk, ...]:
    found, likely_bytes = [Risk(text) for text in trace.risks], played.peak_reserved
    if _has_convolutions(trace):
        found.append(Risk(CONVOLUTION, round(likely_bytes * (CONVOLUTION_HIGH_SHARE - HIGH_SHARE))))
    if tried_bytes > likely_bytes:
        found.append(Risk(TRIED.format(tried_bytes / GIB), tried_bytes - likely_bytes))
    if played.peak_allocated - least.peak_allocated > SMALLEST_OUTPUTS * played.peak_allocated:
        found.append(Risk(OUTPUTS.format((played.peak_allocated - least.peak_allocated) / MIB)))
    return tuple(found)


def _verdict(
    likely: StepTrace,
    least: StepTrace,
    card: DeviceModel | None,
    context: Interval,
    shares: tuple[float, float],
    settings: AllocatorSettings | None,
) -> tuple[bool | None, str]:
    """The steps are replayed on a device of the card's size: a full cache is no failure, a full device is.
    What is uncertain may turn out well in how long outputs are held, too: `least` holds them for the shortest."""
    if card is None:
        return None, "No card was named."
    low, high = shares
    cautious = (card.usable_bytes - context.high) / high
    hopeful = (card.memory_bytes - context.low) / low
    size = f"{card.memory_bytes / MIB:,.0f} MiB of the {card.name}"
    if fits_in(likely, max(0, int(cautious)), settings):
        return True, f"The step runs in the {size}, with room for what is uncertain."
    if not fits_in(least, max(0, int(hopeful)), settings):
        return False, f"The step does not run in the {size}, even if all that is uncertain turns out well."
    return None, f"Too close to the {size} to say; {READING_LEFT}"
