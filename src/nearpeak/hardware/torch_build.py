"""What the installed torch was built for and what of it works here. Imports torch: run it through `hardware.probe`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

__all__ = ["TorchBuild", "TorchDevice", "read_torch"]

SDPA_KERNELS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """One accelerator as torch sees it."""

    kind: str
    """cuda (ROCm too), xpu, mps."""
    index: int
    name: str | None
    memory_bytes: int | None
    bf16: bool | None
    """Whether it computes in bf16 itself, instead of emulating it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """One build of torch on one machine."""

    version: str
    cuda: str | None
    """CUDA version that it was built for, not the driver's."""
    rocm: str | None
    xpu: str | None
    devices: tuple[TorchDevice, ...]
    threads: int
    cpu_capability: str | None
    attention: tuple[str, ...]
    """Kernels of scaled_dot_product_attention whose forward and backward ran on the first device."""
    has_flex_attention: bool
    has_varlen_attention: bool
    backends: tuple[str, ...]
    """Of torch.distributed."""
    fault: str | None = None
    """What torch said when its devices could not be opened."""


def read_torch() -> TorchBuild:
    """Ask torch, trying what can be tried in a moment."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices = _read_devices(torch)
        built_for_gpu = torch.version.cuda or torch.version.hip
    # Torch does not raise over a driver that is too old or broken: it warns and goes on without devices.
    said = [str(warning.message).strip() for warning in caught if "CUDA" in str(warning.message)]
    return TorchBuild(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        xpu=getattr(torch.version, "xpu", None),
        devices=devices,
        threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        attention=_working_attention(torch, devices[0].kind if devices else "cpu"),
        has_flex_attention=_has_module("torch.nn.attention.flex_attention"),
        has_varlen_attention=_has_module("torch.nn.attention.varlen"),
        backends=_backends(torch),
        fault=said[0] if said and built_for_gpu and not devices else None,
    )


def _read_devices(torch: Any) -> tuple[TorchDevice, ...]:
    found = [_cuda_device(torch, index) for index in range(torch.cuda.device_count())] if _has_cuda(torch) else []
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [_xpu_device(torch, index) for index in range(torch.xpu.device_count())]
    if torch.backends.mps.is_available():
        # Unified memory: the host's memory is the device's; how much of it may be used is not one figure.
        found.append(TorchDevice(kind="mps", index=0, name="Apple GPU", memory_bytes=None, bf16=None))
    return tuple(found)


def _has_cuda(torch: Any) -> bool:
    return torch.cuda.is_available()


def _cuda_device(torch: Any, index: int) -> TorchDevice:
    properties = torch.cuda.get_device_properties(index)
    # ROCm reports a capability of its own kind; all that it supports compute in bf16.
    native = True if torch.version.hip else properties.major >= 8
    return TorchDevice(
        kind="cuda", index=index, name=properties.name, memory_bytes=properties.total_memory, bf16=native
    )


def _xpu_device(torch: Any, index: int) -> TorchDevice:
    properties = torch.xpu.get_device_properties(index)
    return TorchDevice(kind="xpu", index=index, name=properties.name, memory_bytes=properties.total_memory, bf16=None)


def _working_attention(torch: Any, device: str) -> tuple[str, ...]:
    return tuple(name for name, backend in SDPA_KERNELS.items() if _attends(torch, device, backend))


def _attends(torch: Any, device: str, backend: str) -> bool:
    """Whether one kernel runs forward and backward, in the precision that it would be used in."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not hasattr(SDPBackend, backend):
        return False
    dtype = torch.float32 if device == "cpu" else torch.float16
    rows = torch.randn(1, 2, 16, 32, dtype=dtype, device=device, requires_grad=True)
    try:
        with warnings.catch_warnings(), sdpa_kernel(getattr(SDPBackend, backend)):
            warnings.simplefilter("ignore")  # torch explains at length why a kernel does not fit; the answer is enough
            torch.nn.functional.scaled_dot_product_attention(rows, rows, rows).sum().backward()
    except RuntimeError:
        return False
    return True


def _backends(torch: Any) -> tuple[str, ...]:
    distributed = torch.distributed
    if not distributed.is_available():
        return ()
    return tuple(name for name in ("gloo", "nccl", "mpi", "xccl") if _has_backend(distributed, name))


def _has_backend(distributed: Any, name: str) -> bool:
    asked = getattr(distributed, f"is_{name}_available", None)
    return bool(asked and asked())


def _has_module(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
