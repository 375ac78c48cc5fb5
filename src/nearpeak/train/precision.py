"""Precision: what is computed in how many bits, and fp16's loss scale, under which no window is ever lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from nearpeak.errors import SettingError
from nearpeak.reason import Reason

__all__ = ["LossScaler", "autocast", "bf16_is_native", "check_precision", "tf32"]

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse what this device cannot do, naming what it can."""
    if precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise SettingError(
            f"precision='tf32' needs an NVIDIA GPU of compute capability 8.0 or later; this is {device.type}. "
            "Use 'fp32' or 'bf16'."
        )


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context of forward passes. Weights and gradients stay in the model's own type."""
    if precision not in AUTOCAST:
        return contextlib.nullcontext()
    return torch.autocast(device.type, AUTOCAST[precision])


@contextlib.contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """TensorFloat-32 for matrix products while it is open."""
    before = torch.get_float32_matmul_precision()
    if wanted:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def bf16_is_native(device: torch.device) -> tuple[bool, str]:
    """Whether bf16 products have their own instructions here; emulated, they are slower than fp32."""
    if device.type == "cuda":
        capable = torch.cuda.get_device_capability(device) >= (8, 0)
        return capable, f"compute capability {torch.cuda.get_device_capability(device)}"
    flags = _cpu_flags()
    found = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    return bool(found), f"CPU flags {', '.join(found)}" if found else "the CPU has no bf16 instructions"


def _cpu_flags() -> set[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return set(line.split(":", 1)[1].split())
    return set()


@dataclass(slots=True)
class LossScaler:
    """fp16's dynamic loss scale.

    Where the usual scaler skips an overflowed update, and with it a window and a step of the schedule, nearpeak runs
    the window again at half the scale. A window that overflows at every scale is run in fp32, once, and said so.
    """

    scale: float = 2.0**16
    growth_interval: int = 2000
    smallest: float = 2.0**-10
    largest: float = 2.0**24
    updates_since_change: int = 0
    overflows: int = 0

    def accept(self) -> None:
        """An update went well; after enough of them the scale doubles."""
        self.updates_since_change += 1
        if self.updates_since_change >= self.growth_interval and self.scale < self.largest:
            self.scale, self.updates_since_change = self.scale * 2, 0

    def reject(self) -> bool:
        """An update overflowed: halve the scale. False once no scale is left to try."""
        self.overflows += 1
        self.updates_since_change = 0
        if self.scale <= self.smallest:
            return False
        self.scale /= 2
        return True

    def reason(self, step: int) -> Reason:
        """What the log says about an overflow."""
        return Reason(
            f"loss_scale={self.scale:g}",
            f"step {step} overflowed fp16 and is run again at this scale: no window is lost.",
            {"overflows": self.overflows},
        )


def all_finite(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One flag on the device: whether every value of every gradient is finite."""
    if not tensors:
        return torch.tensor(True)
    norms = torch._foreach_norm(tensors, float("inf"))
    return torch.stack([norm.float() for norm in norms]).isfinite().all()
