"""The largest micro-batch whose step runs on a card, found from traces at two sizes and checked by a third."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nearpeak.errors import NearpeakError, OutOfMemoryError
from nearpeak.predict.capture import capture, capture_all
from nearpeak.predict.played import extrapolated
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace
from nearpeak.reason import Reason

__all__ = ["LargestBatch", "largest_batch"]

PROBES = (2, 4)
MOST = 1 << 16
MOST_CORRECTIONS = 4


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The answer, the step captured at it, and how it was found."""

    batch: int
    trace: StepTrace
    reason: Reason


def largest_batch(request: CaptureRequest, fits: Callable[[StepTrace], bool]) -> LargestBatch:
    """`fits` says of a step whether it runs. Memory grows along a line with the batch, tensor by tensor; where a step
    changes its course with the batch, each size is captured by itself."""
    small, large = _both(request)
    between = _search(lambda batch: _along(small, large, batch), fits)
    batch, corrections = max(1, between), 0
    while corrections <= MOST_CORRECTIONS:
        trace = capture(replace(request, batch=batch))
        if fits(trace):
            why = f"Captured at {PROBES[0]} and {PROBES[1]} samples, drawn on tensor by tensor, and checked at {batch}."
            return LargestBatch(batch, trace, Reason(f"micro_batch={batch}", why, {"corrections": corrections}))
        if batch == 1:
            break
        batch, corrections = batch - max(1, batch // 50), corrections + 1
    raise OutOfMemoryError(f"{request.model}: not even a micro-batch of {batch} is sure to fit.")


def _both(request: CaptureRequest) -> tuple[StepTrace, StepTrace]:
    found = capture_all([replace(request, batch=batch) for batch in PROBES])
    for each in found:
        if isinstance(each, NearpeakError):
            raise each
    small, large = found
    assert isinstance(small, StepTrace)
    assert isinstance(large, StepTrace)
    return small, large


def _along(small: StepTrace, large: StepTrace, batch: int) -> StepTrace:
    """Where the two steps differ in more than sizes, the larger is scaled as a whole: the check at the end decides."""
    exact = extrapolated(small, PROBES[0], large, PROBES[1], batch)
    if exact is not None:
        return exact
    fixed = ("parameters", "buffers", "gradients", "optimizer_state", "autocast_cache", "workspace")
    share = batch / PROBES[1]
    allocations = tuple(
        each if each.category in fixed else replace(each, bytes=max(1, round(each.bytes * share)))
        for each in large.allocations
    )
    return replace(large, allocations=allocations)


def _search(at: Callable[[int], StepTrace], fits: Callable[[StepTrace], bool]) -> int:
    """The largest size that fits, 0 where none does."""
    high = 1
    while high < MOST and fits(at(high)):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return low
