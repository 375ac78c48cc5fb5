from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import DataError, SettingError
from nearpeak.recording.columns import pack_columns, unpack_columns

CELLS = st.one_of(
    st.none(),
    st.integers(min_value=-(2**63), max_value=2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.booleans(),
)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    return type(a) is type(b) and a == b


@given(st.lists(CELLS, max_size=80))
def test_any_column_comes_back_as_it_was(column: list[int | float | str | bool | None]) -> None:
    (back,) = unpack_columns(pack_columns({"x": column})).values()
    assert len(back) == len(column) and all(map(same, back, column))


@given(st.lists(st.one_of(st.none(), st.decimals(-1e6, 1e6, places=3).map(float)), min_size=1, max_size=80))
def test_decimals_come_back_exactly(column: list[float | None]) -> None:
    (back,) = unpack_columns(pack_columns({"x": column})).values()
    assert all(map(same, back, column))


def test_not_a_number_and_negative_zero_are_kept() -> None:
    column = [0.0, -0.0, math.nan, math.inf, 0.1]
    (back,) = unpack_columns(pack_columns({"x": column})).values()
    assert all(map(same, back, column))


def test_true_is_not_one_and_one_is_not_one_point_zero() -> None:
    column = [True, 1, 1.0, "1", None]
    (back,) = unpack_columns(pack_columns({"x": column})).values()
    assert [type(value) for value in back] == [bool, int, float, str, type(None)]


def test_what_hardly_changes_takes_hardly_any_room() -> None:
    rng = random.Random(1)
    columns = {
        "at_ns": [1_700_000_000_000_000_000 + i * 1_000_000_000 + rng.randrange(3) * 1_000_000 for i in range(600)],
        "clock_max_hz": [1.98e9] * 600,
        "power_w": [round(400 + rng.gauss(0, 20), 3) for _ in range(600)],
        "busy_percent": [float(rng.choice([99, 100])) for _ in range(600)],
    }
    assert len(pack_columns(columns)) / 600 < 3.8


def test_damage_is_our_own_error() -> None:
    block = pack_columns({"x": [1, 2, 3]})
    for damaged in (block[:-4], b"", b"not zlib", block[:5] + b"\0" + block[6:]):
        with pytest.raises(DataError, match="damaged"):
            unpack_columns(damaged)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(SettingError, match=r"different lengths \[1, 2\]"):
        pack_columns({"x": [1], "y": [1, 2]})
