"""What trying algorithms takes, held against single convolutions measured on an H200, and what a forecast says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_convolution import convolution

from nearpeak.predict.cards import DeviceModel
from nearpeak.predict.memory import forecast_memory
from nearpeak.predict.played import fits_in, play
from nearpeak.predict.pretend.trials import tried_bytes
from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

MIB, GIB = 1 << 20, 1 << 30

MEASURED = [
    ((2, 512, 512, 7, 3, 1, 1), 588, 1088),
    ((64, 512, 512, 7, 3, 1, 1), 658, 1351),
    ((16, 256, 256, 14, 3, 1, 1), 156, 303),
    ((64, 64, 64, 56, 3, 1, 1), 264, 314),
    ((64, 256, 64, 56, 1, 1, 1), 1056, 710),
    ((8, 1024, 2048, 7, 1, 1, 1), 4634, 4612),
    ((64, 64, 64, 112, 5, 1, 1), 1040, 1236),
    ((16, 256, 512, 28, 3, 2, 1), 36, 2301),
]


@pytest.mark.parametrize(("shape", "forward_mib", "backward_mib"), MEASURED)
def test_formulae_are_near_what_was_measured(shape: tuple[int, ...], forward_mib: float, backward_mib: float) -> None:
    (operator, arguments, _), (back, back_arguments, _) = convolution(shape)
    assert tried_bytes(operator, arguments) / MIB == pytest.approx(forward_mib, rel=0.1, abs=40)
    assert tried_bytes(back, back_arguments) / MIB == pytest.approx(backward_mib, rel=0.25)


def test_half_precision_and_groups_try_little() -> None:
    for call in ((8, 64, 64, 28, 3, 1, 8), torch.float32), ((8, 64, 64, 28, 3, 1, 1), torch.float16):
        (operator, arguments, _), _ = convolution(*call)
        assert tried_bytes(operator, arguments) == 0


def trying_step(tried: int) -> StepTrace:
    """Holds 1 GiB, tries an algorithm, and goes on."""
    return StepTrace(
        allocations=(Allocation(GIB, "parameters", "layer", "build", -1),),
        operators=(Operator("convolution", "layer", "forward", 1, 1, (1,), (1,)),),
        segments=(Segment("build", 0, (1,)), Segment("forward", 0, (0,))),
        parameters=1,
        trainable_parameters=1,
        tried_bytes=(tried,),
    )


def test_a_tried_algorithm_is_a_peak_of_its_own() -> None:
    played = play(trying_step(3 * GIB))
    assert played.peak_tried == 4 * GIB
    assert played.peak_reserved == GIB
    assert play(replace(trying_step(0), tried_bytes=())).peak_tried == GIB


def test_the_interval_reaches_to_it_and_the_risk_says_so() -> None:
    forecast = forecast_memory(trying_step(3 * GIB))
    assert forecast.reserved.interval.high == 4 * GIB
    assert forecast.reserved.interval.likely == GIB
    (risk,) = (each for each in forecast.risks if "cudnn.benchmark" in each.name)
    assert "4.0 GiB" in risk.name
    assert risk.extra_bytes == 3 * GIB


def test_what_does_not_fit_is_not_tried_and_no_step_fails_for_it() -> None:
    trace = trying_step(30 * GIB)
    assert fits_in(trace, 2 * GIB)
    forecast = forecast_memory(trace, DeviceModel("card", 8 * GIB, 8 * GIB, (8, 0), "made up"))
    assert forecast.fits is True
    assert forecast.device_used.interval.low < forecast.reserved.interval.high < 8 * GIB
