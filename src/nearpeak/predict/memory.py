"""`MemoryForecast`: what a training step will hold of a GPU's memory, each figure with its interval and its risks."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.forecast import Estimate, Forecast, Interval
from nearpeak.predict.allocator_settings import AllocatorSettings
from nearpeak.predict.cards import DeviceModel, context_bytes
from nearpeak.predict.played import Curve, Played, fits_in, play
from nearpeak.predict.reading import Reading
from nearpeak.predict.step_trace import StepTrace, repeated

__all__ = ["STEPS", "MemoryForecast", "Risk", "forecast_memory", "peaks", "tried_bytes"]

MIB = 1 << 20
STEPS = 2
"""Optimizer state comes in the first step; the second is the first that has all."""
LATER_STEPS = 4
"""What the allocator takes after that depends on where small buffers happened to lie: it widens the interval."""
LOW_SHARE, HIGH_SHARE = 0.97, 1.04
"""Nine of ten measured peaks lie between these shares of the predicted (docs/memory.md)."""
CALIBRATED_SHARE = 0.015
TRIED_SHARE = 0.5
"""Of the largest convolution's operands and results; fitted on sixty runs of an A100, held against others."""
CONVOLUTION = "convolutions: cuDNN takes a workspace that depends on the algorithm it picks, up to gigabytes"
READING_LEFT = "a reading of the card narrows this: --calibrate used=…"
CALIBRATED_ON = "measured peaks of public training runs, by benchmarks/memory.py"


@dataclass(frozen=True, slots=True)
class Risk:
    """Something that may make the truth differ, and by how much where that is known."""

    name: str
    extra_bytes: int | None = None


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
    keeps_outputs: bool = True,
    extra_device_bytes: int = 0,
    reading: Reading | None = None,
) -> MemoryForecast:
    """From a captured step to figures. `extra_device_bytes` is held outside the allocator, such as by NCCL."""
    several = repeated(trace, steps, keeps_outputs=keeps_outputs)
    played = play(several, settings)
    context = _context(card, extra_device_bytes, reading)
    risks = _risks(trace)
    allocated = _around(played.peak_allocated, risks, reading)
    later = play(repeated(trace, steps + LATER_STEPS, keeps_outputs=keeps_outputs), settings)
    likely = played.peak_reserved + tried_bytes(trace)
    reserved = _reaching(_around(likely, risks, reading), later.peak_reserved + tried_bytes(trace))
    used = Interval(reserved.low + context.low, reserved.likely + context.likely, reserved.high + context.high)
    fits, why = _verdict(several, card, context, risks, reading, settings)
    return MemoryForecast(
        allocated=_estimate(allocated, reading),
        reserved=_estimate(reserved, reading),
        device_used=_estimate(used, reading),
        fits=fits,
        why=why,
        by_category=played.by_category,
        by_module=played.by_module,
        peak_phase=played.peak_phase,
        curve=played.curve,
        risks=risks,
        parameters=trace.parameters,
        trainable_parameters=trace.trainable_parameters,
        flops=trace.flops,
    )


def peaks(trace: StepTrace, *, keeps_outputs: bool = True, settings: AllocatorSettings | None = None) -> Played:
    """The replay alone, for those who have intervals of their own."""
    return play(repeated(trace, STEPS, keeps_outputs=keeps_outputs), settings)


def tried_bytes(trace: StepTrace) -> int:
    """With `cudnn.benchmark`, what trying algorithms takes beside the step's own memory."""
    if trace.facts.get("cudnn_benchmark") != "True":
        return 0
    return round(TRIED_SHARE * _largest_convolution_bytes(trace))


def _largest_convolution_bytes(trace: StepTrace) -> int:
    return max((each.bytes for each in trace.operators if each.name.startswith("convolution")), default=0)


def _estimate(interval: Interval, reading: Reading | None) -> Estimate:
    return Estimate(interval, CALIBRATED_ON if reading is None else f"a reading of {reading.used_bytes / MIB:,.0f} MiB")


def _context(card: DeviceModel | None, extra: int, reading: Reading | None) -> Interval:
    """A reading says what stands beside the allocator's memory, whatever that is."""
    if reading is not None:
        beside = reading.beside_bytes
        return Interval(beside, beside, beside)
    context = context_bytes(card)
    return Interval(context.low + extra, context.likely + extra, context.high + extra)


def _around(likely: int, risks: tuple[Risk, ...], reading: Reading | None) -> Interval:
    if reading is not None:
        return Interval(likely * (1 - CALIBRATED_SHARE), likely, likely * (1 + CALIBRATED_SHARE))
    return Interval(likely * LOW_SHARE, likely, likely * HIGH_SHARE + _extra(risks))


def _reaching(interval: Interval, high: float) -> Interval:
    return Interval(interval.low, interval.likely, max(interval.high, high))


def _extra(risks: tuple[Risk, ...]) -> int:
    return sum(risk.extra_bytes or 0 for risk in risks)


def _risks(trace: StepTrace) -> tuple[Risk, ...]:
    found = [Risk(text) for text in trace.risks]
    largest = _largest_convolution_bytes(trace)
    if largest:
        found.append(Risk(CONVOLUTION, largest // 4))
    return tuple(found)


def _verdict(
    trace: StepTrace,
    card: DeviceModel | None,
    context: Interval,
    risks: tuple[Risk, ...],
    reading: Reading | None,
    settings: AllocatorSettings | None,
) -> tuple[bool | None, str]:
    """The steps are replayed on a device of the card's size: a full cache is no failure, a full device is."""
    if card is None:
        return None, "No card was named."
    low, high = (1 - CALIBRATED_SHARE, 1 + CALIBRATED_SHARE) if reading else (LOW_SHARE, HIGH_SHARE)
    extra = 0 if reading else _extra(risks)
    cautious = (card.memory_bytes - context.high - extra) / high
    hopeful = (card.memory_bytes - context.low) / low
    size = f"{card.memory_bytes / MIB:,.0f} MiB of the {card.name}"
    if fits_in(trace, max(0, int(cautious)), settings):
        return True, f"The step runs in the {size}, with room for what is uncertain."
    if not fits_in(trace, max(0, int(hopeful)), settings):
        return False, f"The step does not run in the {size}, even if all that is uncertain turns out well."
    return None, f"Too close to the {size} to say; {READING_LEFT}"
