"""Processes on an NVIDIA device: who runs there, with how much memory, and how busy each keeps it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from nearpeak.hardware.live.driver import NOT_FOUND, Asker, Refused
from nearpeak.hardware.live.owners import Owner, OwnerBook
from nearpeak.hardware.reading import ProcessUse

__all__ = ["ProcessLister"]

LISTS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
}
NO_INSTANCE = 0xFFFFFFFF
NO_MEMORY_FIGURE = 0xFFFFFFFFFFFFFFFF
OWNER_FIELDS = tuple(each.name for each in fields(Owner))


class ProcessLister:
    """Of one device. Used from one thread at a time."""

    def __init__(self, ask: Asker, owners: OwnerBook, *, has_shares: bool = True) -> None:
        self._ask, self._owners = ask, owners
        self._has_shares = has_shares
        self._last_seen = 0

    def read(self) -> tuple[ProcessUse, ...] | None:
        """By memory, most first; None where the driver does not say."""
        found: dict[tuple[int, int | None, int | None], dict[str, Any]] = {}
        answered = False
        for kind, names in LISTS.items():
            entries = self._list(kind, names)
            if entries is None:
                continue
            answered = True
            for entry in entries:
                _merge(found, kind, entry)
        if not answered:
            return None
        shares = self._shares() if found and self._has_shares else {}
        uses = (self._described(use, shares) for use in found.values())
        return tuple(sorted(uses, key=lambda use: (-(use.memory_bytes or 0), use.pid)))

    def _list(self, kind: str, names: tuple[str, ...]) -> list[Any] | None:
        """None where it is refused; raises Refused only where the device is lost."""
        if kind in self._ask.refused:
            return None
        try:
            return self._ask.first_of(*names)
        except Refused as refused:
            if refused.lost:
                raise
            if refused.final:
                self._ask.refused[kind] = refused.record()
            return None

    def _shares(self) -> dict[int, Any]:
        """The newest sample of each process since the last call."""
        if "process shares" in self._ask.refused:
            return {}
        try:
            samples = self._ask("nvmlDeviceGetProcessUtilization", self._last_seen)
        except Refused as refused:
            if refused.lost:
                raise
            if refused.final and refused.code != NOT_FOUND:
                self._ask.refused["process shares"] = refused.record()
            return {}
        newest: dict[int, Any] = {}
        for sample in sorted(samples, key=lambda sample: sample.timeStamp):
            # Drivers leave entries of processes that are gone, with shares that are none.
            if max(sample.smUtil, sample.memUtil) <= 100 and sample.timeStamp > self._last_seen:
                newest[sample.pid] = sample
        self._last_seen = max((sample.timeStamp for sample in newest.values()), default=self._last_seen)
        return newest

    def _described(self, use: dict[str, Any], shares: dict[int, Any]) -> ProcessUse:
        sample, owner = shares.get(use["pid"]), self._owners.look_up(use["pid"])
        busy = {} if sample is None else {
            "busy_percent": float(sample.smUtil),
            "memory_busy_percent": float(sample.memUtil),
            "encoder_percent": float(sample.encUtil),
            "decoder_percent": float(sample.decUtil),
        }  # fmt: skip
        return ProcessUse(**use, **busy, **{name: getattr(owner, name) for name in OWNER_FIELDS})


def _merge(found: dict[tuple[int, int | None, int | None], dict[str, Any]], kind: str, entry: Any) -> None:
    """A process may stand in both lists, with the same memory."""
    instances = [_known(getattr(entry, name, None)) for name in ("gpuInstanceId", "computeInstanceId")]
    key = entry.pid, instances[0], instances[1]
    memory = entry.usedGpuMemory
    memory = None if memory is None or memory == NO_MEMORY_FIGURE else memory
    if key in found:
        found[key]["kind"] = "compute+graphics"
        found[key]["memory_bytes"] = found[key]["memory_bytes"] or memory
        return
    names = ("gpu_instance", "compute_instance")
    found[key] = {"pid": entry.pid, "kind": kind, "memory_bytes": memory, **dict(zip(names, instances, strict=True))}


def _known(instance: int | None) -> int | None:
    return None if instance is None or instance == NO_INSTANCE else instance
