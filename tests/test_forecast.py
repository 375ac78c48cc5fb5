from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import SettingError
from nearpeak.forecast import Estimate, Forecast, Interval

figures = st.lists(st.floats(0, 1e15), min_size=3, max_size=3).map(sorted)


@given(figures)
def test_forecast_survives_json(three: list[float]) -> None:
    forecast = Forecast(step_ms=Estimate(Interval(*three), "8 probes on this machine"))
    assert msgspec.json.decode(msgspec.json.encode(forecast), type=Forecast) == forecast


@pytest.mark.parametrize("bad", [(2.0, 1.0, 3.0), (1.0, 3.0, 2.0), (1.0, math.nan, 2.0), (0.0, 1.0, math.inf)])
def test_interval_refuses_disorder_and_the_unknown(bad: tuple[float, float, float]) -> None:
    with pytest.raises(SettingError, match="finite|low ≤ likely ≤ high"):
        Interval(*bad)


def test_estimate_needs_a_basis() -> None:
    with pytest.raises(SettingError, match="calibrated_on"):
        Estimate(Interval(1, 2, 3), " ")


def test_forecast_refuses_negative_need() -> None:
    with pytest.raises(SettingError, match="peak_bytes"):
        Forecast(peak_bytes=Estimate(Interval(-1, 2, 3), "a test"))


def test_forecast_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Forecast().step_ms = None  # pyright: ignore[reportAttributeAccessIssue]
