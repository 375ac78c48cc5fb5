"""Ctrl-C, SIGTERM and SIGUSR1 during training: the first asks to stop after the step, the second stops at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupts"]

SOON_S = 0.5
ASKED = (signal.SIGINT, signal.SIGTERM, *((signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()))
AGREE_EVERY = 5
"""Steps between the moments at which ranks tell each other that one of them was asked to stop."""


class Interrupts:
    """Notes a request to stop; use it as a context manager around the loop."""

    def __init__(self, ranks: int = 1) -> None:
        self.signal: int | None = None
        """The signal that asked, None as long as nobody did."""
        self._ranks = ranks
        self._before: dict[int, Any] = {}
        self._group: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            self._before = {number: signal.signal(number, self._ask) for number in ASKED}
        if self._ranks > 1:
            import torch.distributed

            # Agreement travels over the host, so that it never waits for the accelerator.
            self._group = torch.distributed.new_group(backend="gloo")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt  # asked twice: now
        self.signal = number

    def comes_soon(self) -> bool:
        """Whether somebody asked, or does in a moment: a signal to many processes reaches this one last, maybe."""
        deadline = time.monotonic() + SOON_S
        while self.signal is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.signal is not None

    def asked(self, step: int) -> bool:
        """Whether to stop behind this step; every rank gives the same answer at the same step."""
        if self._ranks == 1:
            return self.signal is not None
        if (step + 1) % AGREE_EVERY:
            return False
        import torch

        asked = torch.tensor([self.signal or 0])
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX, group=self._group)
        self.signal = int(asked) or None
        return self.signal is not None
