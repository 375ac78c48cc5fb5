"""What the NVIDIA driver says of its devices, through NVML and without torch. A thin shell: it asks and it types.

A broken driver raises, hangs or crashes; `read_nvml` turns what raises into a state, and `hardware.probe` runs it in a
process of its own for the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["NvmlDevice", "NvmlReading", "read_nvml", "read_state"]

LIBRARY = "libnvidia-ml.so.1"
# By NVML's own numbers, so that no version of the binding has to know the name.
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """One device as its driver knows it; what it would not say is None."""

    index: int
    name: str | None
    uuid: str | None
    pci_bus_id: str | None
    memory_bytes: int | None
    used_memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    mig_enabled: bool | None
    fault: str | None = None
    """Why the device could not be opened at all: ``GPU is lost``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """What NVML answered. `missing` is no driver; `broken` is one that does not work."""

    state: Literal["ok", "missing", "broken"]
    detail: str | None = None
    """Why it is not ok, in the driver's words."""
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that the driver runs."""
    devices: tuple[NvmlDevice, ...] = ()


def read_nvml(nvml: Any = None) -> NvmlReading:
    """Ask the driver; `nvml` stands in for the `pynvml` module in tests. Never raises because of a driver."""
    if nvml is None:
        import pynvml as nvml
    state, detail = read_state(nvml)
    if state != "ok":
        return NvmlReading(state=state, detail=detail)
    try:
        return _read_all(nvml)
    except nvml.NVMLError as error:
        return NvmlReading(state="broken", detail=str(error))
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def read_state(nvml: Any) -> tuple[Literal["ok", "missing", "broken"], str | None]:
    """Load the driver and say how it went, in its words; the caller shuts down what is ok."""
    try:
        nvml.nvmlInit()
    except (OSError, AttributeError) as error:
        return "broken", f"{type(error).__name__}: {error}"
    except nvml.NVMLError as error:
        found = _explain(error)
        return found.state, found.detail
    return "ok", None


def _explain(error: Any) -> NvmlReading:
    code = getattr(error, "value", None)
    if code == LIBRARY_NOT_FOUND:
        return _why_not_loaded()
    hints = {
        DRIVER_NOT_LOADED: "the driver's library is here, its kernel module is not loaded",
        VERSION_MISMATCH: "the driver's library and its kernel module have different versions",
    }
    return NvmlReading(state="broken", detail=hints.get(code, str(error)) if isinstance(code, int) else str(error))


def _why_not_loaded() -> NvmlReading:
    """The binding says `not found` of a damaged library too; the loader's own words tell the two apart."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        absent = "No such file" in str(error)
        return NvmlReading(state="missing" if absent else "broken", detail=None if absent else str(error))
    return NvmlReading(state="broken", detail=f"{LIBRARY} loads, but not for the binding")


def _read_all(nvml: Any) -> NvmlReading:
    cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    return NvmlReading(
        state="ok",
        driver_version=_text(_ask(nvml, nvml.nvmlSystemGetDriverVersion)),
        cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        devices=tuple(_read_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())),
    )


def _read_device(nvml: Any, index: int) -> NvmlDevice:
    """One device; a lost one is listed with its fault, the others are still read."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        unknown: dict[str, Any] = dict.fromkeys(NvmlDevice.__slots__)
        return NvmlDevice(**(unknown | {"index": index, "fault": str(error)}))
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return NvmlDevice(
        index=index,
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)),
        uuid=_text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)),
        pci_bus_id=None if pci is None else _text(pci.busId),
        memory_bytes=None if memory is None else memory.total,
        used_memory_bytes=None if memory is None else memory.used,
        compute_capability=None if capability is None else (capability[0], capability[1]),
        mig_enabled=None if mig is None else bool(mig[0]),
    )


def _ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this driver or device does not give one."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
