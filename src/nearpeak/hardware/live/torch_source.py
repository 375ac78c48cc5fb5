"""Apple and Intel devices, as far as torch tells: their name and their memory. Everything else is unknown there."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from typing import Any, Literal

from nearpeak.hardware.live.nvml_card import now_ns
from nearpeak.hardware.reading import FIGURES, Device, Reading, Why

__all__ = ["TorchSource"]


class TorchSource:
    """`torch` stands in for the module in tests; else it is imported when the source is opened, which takes seconds."""

    def __init__(self, torch: Any = None) -> None:
        self._torch = torch
        self.vendor = "apple" if sys.platform == "darwin" else "intel"
        self._devices: list[Device] = []
        self.state: Literal["closed", "ok", "missing", "broken"] = "closed"
        self.detail: str | None = None

    @staticmethod
    def is_present() -> bool:
        """Apple silicon, or an Intel build of torch: nothing else pays for the import."""
        if find_spec("torch") is None:
            return False
        if sys.platform == "darwin":
            return platform.machine() == "arm64"
        from importlib.metadata import version

        return "xpu" in version("torch")

    @property
    def devices(self) -> list[Device]:
        return list(self._devices)

    def open(self) -> None:
        """Find the devices."""
        if self._torch is None:
            import torch

            self._torch = torch
        if self.vendor == "apple":
            found = (
                [Device(index=0, vendor="apple", name=platform.processor() or "Apple GPU")] if self._has_mps() else []
            )
        else:
            xpu = self._torch.xpu
            names = [xpu.get_device_name(index) for index in range(xpu.device_count())] if xpu.is_available() else []
            found = [Device(index=index, vendor="intel", name=name) for index, name in enumerate(names)]
        self._devices = found
        self.state = "ok" if found else "missing"

    def read(self) -> list[Reading]:
        """One reading a device."""
        return [self._read(device) for device in self._devices]

    def ask_slow_now(self) -> None:
        """Every question is asked each time."""

    def close(self) -> None:
        """Nothing is held."""
        self.state = "closed"

    def _has_mps(self) -> bool:
        return bool(self._torch.backends.mps.is_available())

    def _read(self, device: Device) -> Reading:
        known: dict[str, Any] = {}
        if device.vendor == "intel":
            free, total = self._torch.xpu.mem_get_info(device.index)
            known = {"memory_total_bytes": total, "memory_free_bytes": free, "memory_used_bytes": total - free}
        else:
            known = {"memory_total_bytes": self._torch.mps.recommended_max_memory()}
        missing: dict[str, Why] = {name: "unsupported" for name in FIGURES if name not in known}
        return Reading(at_ns=now_ns(), device=device.index, missing=missing, **known)
