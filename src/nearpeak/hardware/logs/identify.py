"""Which device each part of a log is about: by number, bus address, UUID, or the order within a round."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.parts import Parts
from nearpeak.hardware.reading import Device

__all__ = ["identify"]

_UNIQUE = ("pci_bus_id", "uuid")
_FIELDS = frozenset(each.name for each in fields(Device)) - {"index", "mig", "other"}
_MOST_IN_ROUND = 64
_SAME_ROUND = 0.4
"""Rows of one round are no further apart than this share of the usual longest gap."""


def identify(parts: Parts) -> tuple[list[int], list[Device]]:
    """A device number for each draft, and the devices."""
    known = _Numbers(parts)
    indices = known.assign(parts.drafts)
    return indices, _devices(parts, indices)


class _Numbers:
    """Learns from drafts that name several of a device's identities, then numbers those that name one."""

    def __init__(self, parts: Parts) -> None:
        self._by_name: dict[tuple[str | None, str, Any], int] = {}
        self._taken: set[int] = set()
        self._hosts: dict[str | None, int] = {}
        self._offsets: dict[tuple[str | None, int], int] = {}
        for draft in parts.drafts:
            if draft.index is not None:
                self._learn(draft.host, self._number(draft.host, draft.index), draft.device)
        for entry in parts.listed:
            if "mig" not in entry:
                self._learn(None, self._number(None, entry["index"]), entry)
        # A second look: what has an address that is known by now tells its UUID too.
        for draft in parts.drafts:
            found = self._find(draft)
            if found is not None:
                self._learn(draft.host, found, draft.device)

    def _number(self, host: str | None, index: int) -> int:
        """The driver's own number; devices of a second host go on counting."""
        key = (host, index)
        if key not in self._offsets:
            clash = any(other == index and name != host for (name, _), other in self._offsets.items())
            self._offsets[key] = self._free() if clash else index
            self._taken.add(self._offsets[key])
        return self._offsets[key]

    def _free(self) -> int:
        return max(self._taken, default=-1) + 1

    def _learn(self, host: str | None, number: int, device: dict[str, Any]) -> None:
        for name in _UNIQUE:
            if device.get(name):
                self._by_name.setdefault((host, name, device[name]), number)

    def _find(self, draft: Draft) -> int | None:
        if draft.index is not None:
            return self._number(draft.host, draft.index)
        names = ((draft.host, name, draft.device.get(name)) for name in _UNIQUE)
        return next((self._by_name[name] for name in names if name[2] and name in self._by_name), None)

    def assign(self, drafts: list[Draft]) -> list[int]:
        """A number for each."""
        nameless = [draft for draft in drafts if self._find(draft) is None and not _has_unique(draft)]
        order = iter(_orders(nameless))
        return [self._one(draft, order) for draft in drafts]

    def _one(self, draft: Draft, order: Any) -> int:
        found = self._find(draft)
        if found is not None:
            return found
        if not _has_unique(draft):
            return next(order)
        number = self._free()
        self._taken.add(number)
        self._learn(draft.host, number, draft.device)
        return number


def _has_unique(draft: Draft) -> bool:
    return any(draft.device.get(name) for name in _UNIQUE)


def _orders(drafts: list[Draft]) -> list[int]:
    """The place of each within its round, where rounds are told by their times; else one device."""
    size = _round_size(drafts)
    if size == 1:
        return [0] * len(drafts)
    limit_ns = _gap_limit(drafts)
    places: list[int] = []
    for number, draft in enumerate(drafts):
        gap_ns = _gap(drafts, number)
        fresh = not places or gap_ns is None or gap_ns > limit_ns or places[-1] + 1 >= size
        places.append(0 if fresh else places[-1] + 1)
        del draft
    return places


def _round_size(drafts: list[Draft]) -> int:
    """How many rows come together; 1 unless nearly all rounds have the same number."""
    stated = {draft.other.get("count") for draft in drafts}
    if len(stated) == 1 and isinstance(count := stated.pop(), int) and 1 <= count <= _MOST_IN_ROUND:
        return count
    limit_ns = _gap_limit(drafts)
    if limit_ns == 0:
        return 1
    sizes: list[int] = []
    for number in range(len(drafts)):
        gap_ns = _gap(drafts, number)
        if not sizes or gap_ns is None or gap_ns > limit_ns:
            sizes.append(0)
        sizes[-1] += 1
    size, often = Counter(sizes).most_common(1)[0]
    return size if size <= _MOST_IN_ROUND and often >= 0.8 * len(sizes) else 1


def _gap_limit(drafts: list[Draft]) -> float:
    gaps = sorted(gap for number in range(1, len(drafts)) if (gap := _gap(drafts, number)) is not None and gap >= 0)
    return _SAME_ROUND * gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))] if gaps else 0.0


def _gap(drafts: list[Draft], number: int) -> int | None:
    if number == 0:
        return None
    before, now = drafts[number - 1].at_ns, drafts[number].at_ns
    return None if before is None or now is None else now - before


def _devices(parts: Parts, indices: list[int]) -> list[Device]:
    """What is known of each; where a log contradicts itself the first word stands, the others are kept beside it."""
    found: dict[tuple[int, int | None], dict[str, Any]] = {}
    other: dict[tuple[int, int | None], dict[str, str]] = {}
    for entry in parts.listed:
        known = found.setdefault((entry["index"], entry.get("mig")), {})
        known.update({name: value for name, value in entry.items() if name in _FIELDS})
    for draft, index in zip(parts.drafts, indices, strict=True):
        key = (index, draft.mig)
        known = found.setdefault(key, {})
        for name, value in draft.device.items():
            inherited = draft.mig is not None and name == "uuid"  # of its card
            if not inherited and known.setdefault(name, value) != value:
                other.setdefault(key, {}).setdefault(f"{name}, later", str(value))
        if draft.host is not None:
            other.setdefault(key, {}).setdefault("host", draft.host)
    for known in found.values():
        known.setdefault("vendor", _vendor(known))
    return [
        Device(index=index, mig=mig, other=other.get((index, mig), {}), **known)
        for (index, mig), known in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or -1))
    ]


def _vendor(known: dict[str, Any]) -> str | None:
    pci, name = str(known.get("pci_id") or ""), str(known.get("name") or "").lower()
    if pci.startswith("10de") or "nvidia" in name or "geforce" in name or "tesla" in name or "quadro" in name:
        return "nvidia"
    return "amd" if pci.startswith("1002") or "amd" in name or "radeon" in name or "instinct" in name else None
