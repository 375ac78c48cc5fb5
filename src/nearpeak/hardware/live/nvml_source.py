"""All NVIDIA devices of this machine, read again and again: the shell around cards, lanes and events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nearpeak.hardware.live.driver import Asker, Driver, Refused
from nearpeak.hardware.live.events import EventWatcher
from nearpeak.hardware.live.lanes import Lane
from nearpeak.hardware.live.nvml_card import NvmlCard, describe, now_ns
from nearpeak.hardware.live.owners import OwnerBook
from nearpeak.hardware.reading import FIGURES, Device, Reading

__all__ = ["NvmlSource"]

PATIENCE_S = 1.0
"""How long a device may take for one reading before the others go on without it."""
OPENING_PATIENCE_S = 30.0
"""Without persistence a driver wakes every card up first, seconds for each."""
SLOW_EVERY_S = 10.0
"""What changes slowly; a pass over eight devices costs as much as two readings."""
SLOW_PATIENCE_S = 5.0
REOPEN_EVERY_S = 10.0


@dataclass(slots=True)
class _Slot:
    """One index of the driver: the card behind it and its MIG instances, or why there is none."""

    index: int
    card: NvmlCard | None
    instances: list[NvmlCard]
    fault: str | None = None
    retry_s: float = float("-inf")
    """When to look again: after a loss, and for MIG instances that come and go."""


class NvmlSource:
    """Open it, read it, close it, all from one thread. Nothing it does waits for a driver longer than its patience."""

    vendor = "nvidia"

    def __init__(self, nvml: Any = None, *, patience_s: float = PATIENCE_S, owners: OwnerBook | None = None) -> None:
        self._driver = Driver(nvml)
        self._owners = owners or OwnerBook()
        self._patience_s = patience_s
        self._lane: Lane[Any] = Lane("devices", OPENING_PATIENCE_S)
        self._slow: Lane[Any] = Lane("slow", max(patience_s, SLOW_PATIENCE_S))
        self._slots: list[_Slot] = []
        self._events = EventWatcher(self._driver)
        self._slow_due_s = float("-inf")
        self.state: Literal["closed", "ok", "missing", "broken"] = "closed"
        self.detail: str | None = None
        """Why it is not ok."""
        self.driver_version: str | None = None
        self.cuda_version: str | None = None

    @property
    def devices(self) -> list[Device]:
        """Those that were found, and those that could not be opened."""
        return [
            each.device if isinstance(each, NvmlCard) else Device(index=each.index, vendor="nvidia")
            for slot in self._slots
            for each in ((slot.card, *slot.instances) if slot.card else (slot,))
        ]

    def open(self) -> None:
        """Load the driver and find its devices; `state` says how it went."""
        answers = self._lane.ask({"open": self._open})
        if not answers:
            self.state, self.detail = "broken", f"the driver did not answer within {OPENING_PATIENCE_S:g} s"
        self._lane.patience_s = self._patience_s

    def read(self) -> list[Reading]:
        """One reading a device and MIG instance, by index."""
        if self.state != "ok":
            return []
        self._events.collect(self._cards())
        self._reopen()
        answers = self._lane.ask({card.device.key: card.read for card in self._cards()})
        self._start_slow()
        readings = []
        for slot in self._slots:
            if slot.card is None:
                readings.append(_no_card(slot))
            else:
                readings += [self._reading(card, answers) for card in (slot.card, *slot.instances)]
                self._note_loss(slot, readings)
        return readings

    def ask_slow_now(self) -> None:
        """Ask the slow questions of all devices and wait for them: for a look that is taken once."""
        if self.state == "ok":
            self._slow.ask({card.device.key: card.ask_slow for card in self._cards()})
            self._slow_due_s = time.monotonic() + SLOW_EVERY_S

    def close(self) -> None:
        """Leave the driver, unless one of its calls is stuck: then it cannot be left cleanly."""
        self._events.close()
        free = self._slow.close() and not self._lane.has_stuck
        if free and self.state == "ok":
            self._lane.ask({"close": self._shut_down})
        self._lane.close()
        self.state = "closed"

    # -- on the lane ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        from nearpeak.hardware.nvml import read_state

        self.state, self.detail = read_state(self._driver.nvml)
        if self.state != "ok":
            return
        self.driver_version = self._maybe("nvmlSystemGetDriverVersion")
        cuda = self._maybe("nvmlSystemGetCudaDriverVersion")
        self.cuda_version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        try:
            count = self._driver.call("nvmlDeviceGetCount")
        except Refused as refused:
            self.state, self.detail = "broken", str(refused)
            return
        self._slots = [self._open_slot(index) for index in range(count)]
        self._events.open(self._cards())

    def _open_slot(self, index: int) -> _Slot:
        try:
            handle = self._driver.call("nvmlDeviceGetHandleByIndex", index)
        except Refused as refused:
            return _Slot(index, None, [], str(refused), time.monotonic() + REOPEN_EVERY_S)
        versions = self._versions()
        device = describe(self._driver, handle, index, **versions)
        card = NvmlCard(self._driver, handle, device, self._owners)
        return _Slot(index, card, self._open_instances(card, versions))

    def _open_instances(self, card: NvmlCard, versions: dict[str, Any]) -> list[NvmlCard]:
        """MIG instances stand in numbered places, some of which are empty."""
        ask = Asker(self._driver, card.handle)
        try:
            if not ask("nvmlDeviceGetMigMode")[0]:
                return []
            places = ask("nvmlDeviceGetMaxMigDeviceCount")
        except Refused:
            return []
        found = []
        for place in range(places):
            try:
                handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
            except Refused:
                continue
            facts = self._instance_facts(handle) | versions | {"compute_capability": card.device.compute_capability}
            device = describe(self._driver, handle, card.device.index, mig=place, **facts)
            found.append(NvmlCard(self._driver, handle, device, self._owners, parent=card.handle))
        return found

    def _instance_facts(self, handle: Any) -> dict[str, Any]:
        ask = Asker(self._driver, handle)
        facts: dict[str, Any] = {}
        for name, function in (
            ("gpu_instance", "nvmlDeviceGetGpuInstanceId"),
            ("compute_instance", "nvmlDeviceGetComputeInstanceId"),
        ):
            facts[name] = self._maybe(function, handle)
        try:
            attributes = ask("nvmlDeviceGetAttributes")
            facts["multiprocessors"] = attributes.multiprocessorCount or None
            facts["mig_profile"] = _profile(attributes)
        except Refused:
            pass
        return facts

    def _shut_down(self) -> None:
        for card in self._cards():
            card.close()
        self._maybe("nvmlShutdown")

    def _maybe(self, name: str, *arguments: Any) -> Any:
        try:
            return self._driver.call(name, *arguments)
        except Refused:
            return None

    # -- on the reader's thread ----------------------------------------------------------------------------------------

    def _cards(self) -> list[NvmlCard]:
        return [card for slot in self._slots if slot.card for card in (slot.card, *slot.instances)]

    def _reading(self, card: NvmlCard, answers: dict[str, Any]) -> Reading:
        held_s = self._lane.stuck_s(card.device.key)
        if held_s is not None:
            return card.hung(held_s)
        reading = answers.get(card.device.key)
        return card.hung(self._patience_s) if reading is None else reading

    def _note_loss(self, slot: _Slot, readings: list[Reading]) -> None:
        """A card that is lost is opened anew after a while: a reset brings it back, under another handle."""
        card = slot.card
        lost = next((r for r in readings if r.device == slot.index and r.mig is None and r.state == "lost"), None)
        if lost is None:
            slot.fault = None
        elif card is not None and slot.fault is None:
            slot.fault, slot.retry_s = lost.fault, time.monotonic() + REOPEN_EVERY_S

    def _reopen(self) -> None:
        """Look again at what was lost, and for MIG instances that came or went."""
        now_s = time.monotonic()
        tasks: dict[str, Callable[[], Any]] = {}
        for place, slot in enumerate(self._slots):
            if now_s >= slot.retry_s and self._lane.stuck_s(str(slot.index)) is None:
                due, slot.retry_s = slot.retry_s > 0, now_s + REOPEN_EVERY_S
                if due:
                    look = self._reopen_slot if slot.fault is not None else self._reopen_instances
                    tasks[str(slot.index)] = lambda look=look, place=place: look(place)
        self._lane.ask(tasks)

    def _reopen_slot(self, place: int) -> None:
        old = self._slots[place]
        fresh = self._open_slot(old.index)
        if fresh.card is None or (fresh.card.device.name is None and old.card is not None):
            return  # still lost
        for card in (old.card, *old.instances) if old.card else ():
            card.close()  # the samples that the driver holds for it
        fresh.card.xid_events = old.card.xid_events if old.card else None
        self._slots[place] = fresh

    def _reopen_instances(self, place: int) -> None:
        """MIG is switched on and off, and cut anew, while we look."""
        slot = self._slots[place]
        if slot.card is None:
            return
        found = self._open_instances(slot.card, self._versions())
        if [each.device for each in found] != [each.device for each in slot.instances]:
            # The card itself answers other questions than before.
            self._reopen_slot(place)

    def _versions(self) -> dict[str, Any]:
        return {"driver_version": self.driver_version, "cuda_version": self.cuda_version}

    def _start_slow(self) -> None:
        self._slow.collect()
        now_s = time.monotonic()
        if self._slow.is_free and now_s >= self._slow_due_s:
            self._slow_due_s = now_s + SLOW_EVERY_S
            free = [card for card in self._cards() if self._lane.stuck_s(card.device.key) is None]
            self._slow.start({card.device.key: card.ask_slow for card in free})


def _no_card(slot: _Slot) -> Reading:
    """A device that could not be opened at all."""
    return Reading(
        at_ns=now_ns(), device=slot.index, state="lost", fault=slot.fault, missing=dict.fromkeys(FIGURES, "lost")
    )


def _profile(attributes: Any) -> str | None:
    """``1g.10gb``: slices and memory, as the tools write it."""
    slices, megabytes = attributes.gpuInstanceSliceCount, attributes.memorySizeMB
    if not slices or not megabytes:
        return None
    compute = attributes.computeInstanceSliceCount
    prefix = f"{compute}c." if compute and compute != slices else ""
    return f"{prefix}{slices}g.{round(megabytes / 1024 + 0.25)}gb"
