"""How many CPU threads both sides of the demo use: measured, since on shared cores more of them can be slower."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from nearpeak.reason import Reason

__all__ = ["threads_now", "using_threads"]

ROUNDS = 8
PRODUCTS = 12
ROWS, INNER, COLUMNS = 512, 256, 1024
"""A product as the demo's model makes them."""


def threads_now() -> tuple[int, Reason]:
    """One thread, or as many as torch would take: whichever makes small products faster at this moment."""
    import torch

    counts = sorted({1, torch.get_num_threads()})
    wall_ms = dict.fromkeys(counts, 0.0)
    left, right = torch.ones(ROWS, INNER), torch.ones(INNER, COLUMNS)
    for _ in range(ROUNDS):
        for count in counts:
            with using_threads(count):
                start = time.perf_counter()
                for _ in range(PRODUCTS):
                    left @ right  # type: ignore[unused-expression]
                wall_ms[count] += (time.perf_counter() - start) * 1e3 / ROUNDS
    # The mean, not the best: what others on the machine take away is what decides.
    best = min(counts, key=lambda count: (wall_ms[count], count))
    because = "products of the model's size are fastest so on this machine as it is now. Both sides use as many."
    return best, Reason(f"threads={best}", because, {f"threads_{n}_ms": round(ms, 3) for n, ms in wall_ms.items()})


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """torch's threads while it is open."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
