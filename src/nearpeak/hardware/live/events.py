"""Error events of NVIDIA drivers (XID), waited for on a thread of their own."""

from __future__ import annotations

import ctypes
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from nearpeak.hardware.live.driver import TIMEOUT, Driver, Refused

if TYPE_CHECKING:
    from nearpeak.hardware.live.nvml_card import NvmlCard

__all__ = ["EventWatcher"]

XID_EVENT = 0x8
WAIT_MS = 1000
FAULTS_IN_A_ROW = 20


class EventWatcher:
    """Counts the error events of cards. `open` and `collect` are called where the cards are read."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seen: SimpleQueue[tuple[int | None, int]] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, cards: list[NvmlCard]) -> None:
        """Watch those cards that report events; theirs begin to count at 0."""
        try:
            events = self._driver.call("nvmlEventSetCreate")
        except Refused:
            return
        watched = False
        for card in cards:
            if card.device.mig is None and self._register(card, events):
                card.xid_events, watched = 0, True
        if watched:
            self._thread = threading.Thread(target=self._watch, args=(events,), name="nearpeak-events", daemon=True)
            self._thread.start()

    def collect(self, cards: list[NvmlCard]) -> None:
        """Give each card the events that came since the last call."""
        while True:
            try:
                address, code = self._seen.get_nowait()
            except Empty:
                return
            for card in cards:
                if card.xid_events is not None and _address(card.handle) == address:
                    card.xid, card.xid_events = code, card.xid_events + 1

    def close(self) -> None:
        """End the watch, unless the driver holds it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(WAIT_MS / 1000 * 1.2)

    def _register(self, card: NvmlCard, events: Any) -> bool:
        try:
            self._driver.call("nvmlDeviceRegisterEvents", card.handle, XID_EVENT, events)
        except Refused:
            return False
        return True

    def _watch(self, events: Any) -> None:
        faults = 0
        while not self._stop.is_set() and faults < FAULTS_IN_A_ROW:
            try:
                event = self._driver.call("nvmlEventSetWait", events, WAIT_MS)
            except Refused as refused:
                faults = 0 if refused.code == TIMEOUT else faults + 1
                if refused.code != TIMEOUT:
                    self._stop.wait(WAIT_MS / 1000)  # a lost card fails at once, again and again
                continue
            faults = 0
            if event.eventType & XID_EVENT:
                self._seen.put((_address(event.device), int(event.eventData)))
        if faults == 0:
            self._free(events)

    def _free(self, events: Any) -> None:
        try:
            self._driver.call("nvmlEventSetFree", events)
        except Refused:  # the library has gone before us
            return


def _address(handle: Any) -> int | None:
    """What a handle points to: two handles of one card are two objects."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except ctypes.ArgumentError:
        return hash(handle)
