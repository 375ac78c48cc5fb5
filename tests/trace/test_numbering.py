"""Names and pairs as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.trace import numbering
from nearpeak.trace.numbering import Numbers, numbered_pairs

KEYS = st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["a", "b"]))


@given(st.lists(st.tuples(KEYS, KEYS), max_size=40), st.sampled_from([0, 1 << 20]))
def test_pairs_come_back_from_their_numbers(pairs: list[tuple[Any, Any]], table: int) -> None:
    """Looked up in a table or sorted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbering, "LARGEST_TABLE", table)
        firsts, seconds = Numbers(), Numbers()
        first, second = (numbers.of([pair[at] for pair in pairs]) for at, numbers in enumerate((firsts, seconds)))
        number, distinct = numbered_pairs(firsts, seconds, first, second)
    assert [distinct[each] for each in number.tolist()] == pairs
    assert len(distinct) == len(set(pairs))


def test_a_column_of_one_key() -> None:
    numbers = Numbers()
    assert numbers.of(["a", "b"]).tolist() == [0, 1]
    assert numbers.of(["b"] * 3).tolist() == [1, 1, 1]
    assert numbers.of(["c", "a", "c"]).tolist() == [2, 0, 2]
    assert numbers.of([]).dtype == np.int32
