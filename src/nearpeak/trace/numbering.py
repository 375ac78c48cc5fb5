"""Numbers in place of texts: what recurs millions of times is kept once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Numbers", "numbered_pairs"]

LARGEST_TABLE = 1 << 20
"""Entries of a table by which pairs are looked up; beyond it they are sorted."""
Int32s = NDArray[np.int32]


class Numbers(dict[Any, int]):
    """Numbers its keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number

    def of(self, keys: list[Any]) -> Int32s:
        """A column of keys as numbers; most columns hold one key throughout."""
        if keys and keys[0] == keys[-1] and keys.count(keys[0]) == len(keys):
            return np.full(len(keys), self[keys[0]], np.int32)
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))


def numbered_pairs(
    firsts: Numbers, seconds: Numbers, first: Int32s, second: Int32s
) -> tuple[Int32s, list[tuple[Any, Any]]]:
    """The number of each row's pair, and the pairs that there are: no tuple is made for a row, which would cost more
    than all else that is done with it."""
    width = max(len(seconds), 1)
    both = first.astype(np.int64) * width + second
    if len(firsts) * width <= LARGEST_TABLE:
        used = np.flatnonzero(np.bincount(both, minlength=1))
        table = np.zeros(len(firsts) * width + 1, np.int32)
        table[used] = np.arange(len(used))
        number = table[both]
    else:
        used, back = np.unique(both, return_inverse=True)
        number = back.astype(np.int32)
    first_keys, second_keys = list(firsts), list(seconds)
    return number, [(first_keys[pair // width], second_keys[pair % width]) for pair in used.tolist()]
