"""Zeros that are none. Some drivers answer "success" and 0 where the device has no such counter; a zero is taken for
unknown where something else that the same device says contradicts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearpeak.hardware.reading import ProcessUse

__all__ = ["Doubt"]

NEVER_ZERO = (
    "memory_total_bytes",
    "power_w",
    "power_average_w",
    "power_instant_w",
    "power_limit_w",
    "power_limit_set_w",
    "power_limit_default_w",
    "power_limit_max_w",
    "clock_hz",
    "clock_memory_hz",
    "clock_graphics_hz",
    "clock_max_hz",
    "clock_graphics_max_hz",
    "clock_memory_max_hz",
    "temperature_c",
    "temperature_slowdown_c",
    "temperature_shutdown_c",
    "energy_j",
    "pcie_generation",
    "pcie_width",
    "pcie_generation_max",
    "pcie_width_max",
    "bar1_total_bytes",
)
"""A device that answers draws power, has a clock, a temperature above freezing, memory and a link."""
USES = (
    "busy_percent",
    "memory_busy_percent",
    "memory_used_bytes",
    "memory_free_bytes",
    "memory_reserved_bytes",
    "fan_percent",
    "encoder_percent",
    "decoder_percent",
    "performance_state",
)
"""Figures that are 0 on an idle device, and believed, unless the device lies about others."""
MANY = 3
"""So many impossible zeros in one reading, and the device's other zeros are not believed either."""
WORKING_PERCENT = 10.0


class Doubt:
    """Keeps what a device was caught at: a driver does not grow honest by itself."""

    def __init__(self) -> None:
        self._never_believed: set[str] = set()

    def doubtful(self, known: Mapping[str, Any], processes: tuple[ProcessUse, ...] | None) -> list[str]:
        """Figures of one reading whose zero is none."""
        impossible = [name for name in NEVER_ZERO if known.get(name) == 0]
        if len(impossible) >= MANY:
            self._never_believed.update(USES)
        if known.get("busy_percent") == 0 and _works(known, processes):
            self._never_believed.add("busy_percent")
        held = sum(use.memory_bytes or 0 for use in processes or ())
        if known.get("memory_used_bytes") == 0 and held:
            self._never_believed.add("memory_used_bytes")
        if known.get("busy_percent"):
            self._never_believed.discard("busy_percent")  # it can count after all
        return impossible + [name for name in USES if name in self._never_believed and known.get(name) == 0]


def _works(known: Mapping[str, Any], processes: tuple[ProcessUse, ...] | None) -> bool:
    """Something else says that the device works."""
    counters = max(known.get("engine_percent") or 0, known.get("sm_busy_percent") or 0)
    shares = max((use.busy_percent or 0 for use in processes or ()), default=0)
    return max(counters, shares) >= WORKING_PERCENT
