"""How wide a forecast is: by what the step runs, what is known of the card, and a reading."""

from __future__ import annotations

import pytest

from nearpeak.forecast import Interval
from nearpeak.predict.cards import DeviceModel
from nearpeak.predict.memory import MemoryForecast, forecast_memory
from nearpeak.predict.reading import Reading
from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

GIB = 1 << 30


def step(operator: str, size: int = 4 * GIB) -> StepTrace:
    """Holds so much, and runs one operator."""
    return StepTrace(
        allocations=(Allocation(size, "parameters", "layer", "build", -1),),
        operators=(Operator(operator, "layer", "forward", 1, size // 4, (1,), (1,)),),
        segments=(Segment("build", 0, (1,)),),
        parameters=1,
        trainable_parameters=1,
    )


def width(interval: Interval) -> tuple[float, float]:
    """Below and above, as shares."""
    return interval.low / interval.likely, interval.high / interval.likely


def test_convolutions_widen_what_is_said_and_are_a_named_risk() -> None:
    product, convolution = forecast_memory(step("mm")), forecast_memory(step("convolution"))
    for figure in ("allocated", "reserved"):
        assert width(getattr(product, figure).interval) == pytest.approx((0.95, 1.04))
        assert width(getattr(convolution, figure).interval) == pytest.approx((0.90, 1.15))
    assert product.risks == ()
    (risk,) = convolution.risks
    assert "cuDNN" in risk.name
    high = product.reserved.interval.high + (risk.extra_bytes or 0)
    assert convolution.reserved.interval.high == pytest.approx(high)
    assert convolution.device_used.interval.high - high > product.device_used.interval.high - high
    assert "without convolutions" in product.reserved.calibrated_on
    assert "timm" in convolution.reserved.calibrated_on


def test_a_reading_fixes_the_context_and_leaves_convolutions_wide() -> None:
    reading = Reading(used_bytes=5 * GIB, beside_bytes=GIB)
    product = forecast_memory(step("mm"), reading=reading)
    convolution = forecast_memory(step("convolution"), reading=reading)
    assert width(product.reserved.interval) == pytest.approx((0.98, 1.02))
    assert width(convolution.reserved.interval) == pytest.approx((0.90, 1.15))
    for each in (product, convolution):
        assert each.device_used.interval.low == pytest.approx(each.reserved.interval.low + GIB)
        assert "5,120 MiB" in each.device_used.calibrated_on


def on_card(operator: str, memory_gib: float, usable_gib: float) -> MemoryForecast:
    card = DeviceModel("card", int(memory_gib * GIB), int(usable_gib * GIB), (8, 0), "made up")
    return forecast_memory(step(operator), card)


@pytest.mark.parametrize(
    ("operator", "memory_gib", "usable_gib", "fits"),
    [
        ("mm", 5.2, 5.2, True),
        ("mm", 5.2, 4.5, None),  # firmware may take what is needed
        ("mm", 3.6, 3.6, False),
        ("convolution", 5.2, 5.2, None),
        ("convolution", 7.2, 7.2, True),
        ("convolution", 3.4, 3.4, False),
    ],
)
def test_fits_only_where_all_that_is_uncertain_may_turn_out_badly(
    operator: str, memory_gib: float, usable_gib: float, fits: bool | None
) -> None:
    assert on_card(operator, memory_gib, usable_gib).fits is fits


def step_with_outputs() -> StepTrace:
    """8 GiB come out of forward, backward does not read them, and nobody frees them."""
    return StepTrace(
        allocations=(
            Allocation(GIB, "parameters", "layer", "build", -1),
            Allocation(8 * GIB, "activations", "layer", "forward", 0),
        ),
        operators=(Operator("mm", "layer", "forward", 1, 8 * GIB, (1,), (2,), (2,)),),
        segments=(Segment("build", 0, (1,)), Segment("forward", 0, (2,)), Segment("backward", 0, ())),
        parameters=1,
        trainable_parameters=1,
    )


def test_never_is_said_only_where_the_shortest_holding_of_outputs_does_not_fit_either() -> None:
    card = DeviceModel("card", 12 * GIB, 12 * GIB, (8, 0), "made up")
    unknown = forecast_memory(step_with_outputs(), card)
    assert unknown.device_used.interval.low < card.memory_bytes < unknown.device_used.interval.likely
    assert unknown.fits is None
    assert forecast_memory(step_with_outputs(), card, outputs_until="next_step").fits is False
    assert forecast_memory(step_with_outputs(), card, outputs_until="backward").fits is True
    smaller = DeviceModel("card", 8 * GIB, 8 * GIB, (8, 0), "made up")
    assert forecast_memory(step_with_outputs(), smaller).fits is False
