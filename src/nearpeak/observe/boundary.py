"""The one boundary between the probe and the user's training: what breaks in here stops the probe, never the run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any

__all__ = ["Boundary"]


class Boundary:
    """Whether the probe is at work, on which thread, and what broke it."""

    __slots__ = ("active", "fault", "thread")

    def __init__(self) -> None:
        self.active = False
        self.thread = main_thread().ident
        self.fault: str | None = None

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call it on the training thread alone, as long as the probe is at work; None otherwise, and if it breaks."""

        def guarded(*args: Any) -> Any:
            if self.active and get_ident() == self.thread:
                try:
                    return function(*args)
                except Exception as error:
                    if _of_signal_handler(error):
                        raise
                    self.broke(error)
            return None

        return guarded

    def guard_anywhere(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for what may be called on any thread."""

        def guarded(*args: Any) -> Any:
            if self.active:
                try:
                    return function(*args)
                except Exception as error:  # noqa: BLE001  the one boundary
                    self.broke(error)
            return None

        return guarded

    def broke(self, error: Exception) -> None:
        """Stop for good and remember why."""
        trace = error.__traceback__
        last = trace
        while trace is not None:
            last, trace = trace, trace.tb_next
        where = "" if last is None else f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})"
        self.active = False
        self.fault = f"{type(error).__name__}: {error}{where}"


def _of_signal_handler(error: Exception) -> bool:
    """Whether the user's own handler raised it, which Python may have called while we were at work: theirs to have."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers if callable(handler)}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
