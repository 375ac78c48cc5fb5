"""A `Reading` in the making: every field that a log gives is put somewhere, none is dropped."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nearpeak.hardware.logs.names import (
    DEVICE_NAMES,
    MASK_NAMES,
    PART_NAMES,
    REASON_NAMES,
    normalised,
    place_of,
    reason_of,
)
from nearpeak.hardware.logs.values import Cell, parse_cell, to_flag
from nearpeak.hardware.reading import FIGURES, THROTTLE_REASONS, ProcessUse, Reading, State, Why

__all__ = ["Draft"]

_WHOLE = frozenset(name for name in FIGURES if "int" in str(Reading.__annotations__[name]))
_FLAG = frozenset(name for name in FIGURES if "bool" in str(Reading.__annotations__[name]))
_IDENTITY = ("index", "pci_bus_id", "uuid", "name")
_MOST_TEXT = 4000
"""Of one field: what is longer is cut; nothing that a tool prints is."""


@dataclass(slots=True)
class Draft:
    """One device at one moment."""

    source: str
    """Format that it was read from."""
    at_ns: int | None = None
    index: int | None = None
    mig: int | None = None
    host: str | None = None
    state: State = "ok"
    fault: str | None = None
    device: dict[str, Any] = field(default_factory=dict)
    """Fields of `Device`."""
    figures: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, Why] = field(default_factory=dict)
    other: dict[str, float | int | str | bool] = field(default_factory=dict)
    processes: list[ProcessUse] | None = None
    refused: dict[str, tuple[str, Cell]] = field(default_factory=dict)
    """Figure → the field that has no value for it."""
    parts: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, bool] = field(default_factory=dict)
    step: int = 0
    """Of a log without times: which round of it this is."""

    def put(self, name: str, text: str, unit: str | None = None, *, decimal_comma: bool = False) -> None:
        """Place one field: in a figure, in the device, or in `other` under the log's own name for it."""
        plain = normalised(name)
        place = place_of(plain)
        written_unit = unit or (place.unit if place else None)
        cell = parse_cell(text, written_unit, decimal_comma=decimal_comma)
        if cell.missing in ("lost", "error"):
            self._note_trouble(cell)
        if plain in DEVICE_NAMES:
            self._put_device(DEVICE_NAMES[plain], name, cell)
        elif place is not None:
            self._put_figure(place.figure, place.scale, name, cell, unit)
        elif not self._put_reason(plain, cell):
            self._put_part(plain, cell)
            self._keep(name, cell, unit)

    def _put_device(self, which: str, name: str, cell: Cell) -> None:
        if cell.missing is not None:
            self._keep(name, cell, None)
            return
        value = _DEVICE_VALUES.get(which, str)(cell.text)
        if value is None or self.device.get(which, value) != value:
            self._keep(name, cell, None)
        else:
            self.device[which] = value

    def _put_figure(self, figure: str, scale: float, name: str, cell: Cell, unit: str | None) -> None:
        if cell.missing is not None:
            if figure in self.figures:
                self._keep(name, cell, unit)
            else:
                self.missing.setdefault(figure, cell.missing)
                self.refused.setdefault(figure, (name, cell))
            return
        value = _to_value(figure, cell, scale)
        if value is None or self.figures.get(figure, value) != value:
            self._keep(name, cell, unit)
        else:
            self.figures[figure] = value
            self.missing.pop(figure, None)
            if figure in self.refused:  # one field says nothing of it, another does
                self._keep(*self.refused.pop(figure), None)

    def _put_reason(self, plain: str, cell: Cell) -> bool:
        """Whether this was about throttle reasons and is placed."""
        reason = reason_of(plain)
        if plain in MASK_NAMES:
            mask = _to_mask(cell)
            if mask is None:
                return False
            self.reasons.update({each.name: bool(mask & each.bit) for each in THROTTLE_REASONS.values()})
            known = sum(each.bit for each in THROTTLE_REASONS.values())
            self.reasons.update({f"bit_0x{bit:x}": True for bit in _bits(mask & ~known)})
            return True
        flag = to_flag(cell) if reason is not None else None
        if reason is None or flag is None:
            return False
        self.reasons[reason] = flag
        return True

    def _put_part(self, plain: str, cell: Cell) -> None:
        figure = PART_NAMES.get(plain)
        if figure is not None and cell.number is not None:
            self.parts[figure] = self.parts.get(figure, 0.0) + cell.number

    def _keep(self, name: str, cell: Cell, unit: str | None) -> None:
        """In `other`; a name that is there already gets a number."""
        label = f"{name} [{unit}]" if unit else name
        label, wanted = label[:200], label[:200]
        number = 2
        while label in self.other:
            label, number = f"{wanted} #{number}", number + 1
        self.other[label] = _plain(cell)

    def _note_trouble(self, cell: Cell) -> None:
        """A device that is lost stays so; one that errs at every question has failed, see `build`."""
        if cell.missing == "lost" or self.state == "ok":
            self.state, self.fault = "lost" if cell.missing == "lost" else "failed", cell.text

    def build(self, at_ns: int, device: int) -> Reading:
        """The reading, with what follows from the fields that were there."""
        self._derive()
        figures = {name: value for name, value in self.figures.items() if value is not None}
        state: State = "ok" if self.state == "failed" and figures else self.state
        return Reading(
            at_ns=at_ns,
            device=device,
            mig=self.mig,
            state=state,
            fault=None if state == "ok" else self.fault,
            missing={name: why for name, why in self.missing.items() if name not in figures},
            processes=None if self.processes is None else tuple(self.processes),
            other=self.other,
            **figures,
        )

    def _derive(self) -> None:
        for figure, total in self.parts.items():
            self._default(figure, int(total))
        known = self.figures
        self._default("power_w", known.get("power_average_w", known.get("power_instant_w")))
        self._default("power_limit_w", known.get("power_limit_set_w"))
        # One clock domain on all devices since Kepler; a log may name either.
        self._default("clock_hz", known.get("clock_graphics_hz"))
        self._default("clock_max_hz", known.get("clock_graphics_max_hz"))
        if self.reasons:
            self._default("throttle_reasons", tuple(name for name, active in self.reasons.items() if active))
            if not self.reasons.keys() | {"display_clocks"} >= REASON_NAMES:  # some were not asked: keep which were
                self.other.update({f"throttle reason {name}": active for name, active in self.reasons.items()})

    def _default(self, figure: str, value: Any) -> None:
        if value is not None and figure not in self.figures:
            self.figures[figure] = value
            self.missing.pop(figure, None)

    def identity(self) -> dict[str, Any]:
        """By what the device can be told."""
        known = {"index": self.index, **{name: self.device.get(name) for name in _IDENTITY[1:]}}
        return {name: value for name, value in known.items() if value is not None}


def _plain(cell: Cell) -> float | int | str | bool:
    """A number where the cell is nothing but one; else its text, unit included."""
    number = cell.number
    if number is None or cell.missing is not None or not re.fullmatch(r"[+-]?\d+(\.\d+)?", cell.text):
        return cell.text[:_MOST_TEXT]
    if len(cell.text) > 15:  # more than a float holds
        return cell.text[:_MOST_TEXT]
    value = number if "." in cell.text else int(number)
    return value if str(value) == cell.text else cell.text  # versions and serial numbers keep their zeros


def _to_value(figure: str, cell: Cell, scale: float) -> Any:
    """The value of a figure; None where the cell says something else than a value."""
    if figure in _FLAG:
        return _to_state_flag(figure, cell)
    if figure == "performance_state":
        match = re.fullmatch(r"[Pp]?(\d{1,2})(?:\.0)?", cell.text)
        return int(match[1]) if match else None
    if figure == "compute_mode":
        return cell.text.lower().replace(" ", "_").replace("e._process", "exclusive_process")
    if cell.si is None:
        return None
    value = cell.si * scale
    return round(value) if figure in _WHOLE else value


def _to_state_flag(figure: str, cell: Cell) -> bool | None:
    if figure == "reset_needed":
        lowered = cell.text.lower()
        if lowered in ("no", "none"):
            return False
        return True if lowered == "yes" or any(word in lowered for word in ("reset", "reboot", "drain")) else None
    if cell.number is not None:
        return cell.number > 0
    return to_flag(cell)


def _to_mask(cell: Cell) -> int | None:
    try:
        value = int(cell.text, 16) if cell.text.lower().startswith("0x") else int(float(cell.text))
    except (ValueError, OverflowError):
        return None
    return value if 0 <= value < 2**64 else None


def _bits(mask: int) -> list[int]:
    return [1 << shift for shift in range(mask.bit_length()) if mask >> shift & 1]


def _to_pci_id(text: str) -> str | None:
    """`0x26B910DE`, device first → `10de:26b9`."""
    match = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", text)
    return f"{match[2].lower()}:{match[1].lower()}" if match else None


def _to_capability(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text)
    return (int(match[1]), int(match[2])) if match else None


def _to_count(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _to_bus_id(text: str) -> str:
    """Domains have four digits or eight; the long form is what drivers give today."""
    match = re.fullmatch(r"([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])", text)
    return (f"0000{match[1]}:{match[2]}" if match else text).upper()


_DEVICE_VALUES: dict[str, Callable[[str], Any]] = {
    "pci_id": _to_pci_id,
    "pci_subsystem_id": _to_pci_id,
    "pci_bus_id": _to_bus_id,
    "compute_capability": _to_capability,
    "multiprocessors": _to_count,
    "gpu_instance": _to_count,
    "compute_instance": _to_count,
}
