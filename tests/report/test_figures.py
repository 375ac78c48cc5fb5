"""Figures as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.forecast import Interval
from nearpeak.report import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.2345, "1.23"),
        (9.999, "10.0"),
        (99.96, "100"),
        (123.4, "123"),
        (12345, "12,345"),
        (None, "unknown"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert figures.number_text(value) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.85, "850 µs"),
        (12.5, "12.5 ms"),
        (1234, "1.23 s"),
        (245_000, "4 min 05 s"),
        (11_220_000, "3 h 07 min"),
        (0, "0 ms"),
        (-3, "−3.00 ms"),
        (None, "unknown"),
    ],
)
def test_durations(milliseconds: float | None, text: str) -> None:
    assert figures.duration_text(milliseconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (512, "512 B"), (3 << 29, "1.50 GiB"), (None, "unknown")])
def test_bytes(count: float | None, text: str) -> None:
    assert figures.bytes_text(count) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("wait_ms", 91.2, "91.2 ms"),
        ("padded_share", 0.33, "33 %"),
        ("peak_bytes", 1 << 30, "1.00 GiB"),
        ("loader_workers", 0, "0"),
        ("fused", False, "no"),
        ("optimizer", "AdamW", "AdamW"),
        ("samples_per_s", 1_500_000.0, "1.50 M/s"),
        ("clock_hz", 1.41e9, "1,410 MHz"),
        ("power_w", None, "unknown"),
    ],
)
def test_named_figures_carry_their_unit(name: str, value: object, text: str) -> None:
    assert figures.figure_text(name, value) == text


def test_gains() -> None:
    assert figures.gain_text(Interval(0.2, 0.31, 0.38)) == "saves 31 % (20 to 38 %)"
    assert figures.gain_text(None) == "gain not counted in time"


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-9, max_value=1e15))
def test_three_digits_are_kept(value: float) -> None:
    text = figures.number_text(value).replace(",", "")
    assert math.isclose(float(text), value, rel_tol=6e-3)
