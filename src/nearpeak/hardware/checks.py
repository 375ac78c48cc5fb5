"""`nearpeak doctor`'s judgement: from what was read of a machine to what works, what it means, and how to get the rest.

Pure functions over records; `examine` alone touches the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from nearpeak.hardware.host import Host, read_host
from nearpeak.hardware.nvml import NvmlReading
from nearpeak.hardware.packages import PACKAGES, InstalledPackage, find_package
from nearpeak.hardware.probe import ProbeFailure, probe
from nearpeak.hardware.toolchain import Toolchain, read_toolchain
from nearpeak.hardware.torch_build import TorchBuild

__all__ = ["Check", "Examination", "State", "examine", "judge"]

State = Literal["ok", "missing", "broken"]
SMALL_SHARED_MEMORY_BYTES = 1 << 30
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    state: State | None
    """None where it could not be found out."""
    found: str
    meaning: str
    """What that is to a training here."""
    remedy: str | None = None
    """How to get what is missing; None where nothing is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything read of one machine."""

    host: Host
    nvml: NvmlReading
    torch: TorchBuild | None
    torch_failure: str | None
    """Why torch is installed and yet gave no answer."""
    packages: tuple[InstalledPackage, ...]
    toolchain: Toolchain


def examine() -> Examination:
    """Read this machine. Drivers and torch are asked in processes of their own, so that they cannot take ours along."""
    packages = tuple(map(find_package, PACKAGES))
    nvml = probe("nvml", NvmlReading, timeout_s=20)
    has_torch = any(found.package.name == "torch" and found.version for found in packages)
    torch = probe("torch", TorchBuild, timeout_s=120) if has_torch else None
    return Examination(
        host=read_host(),
        nvml=NvmlReading(state="broken", detail=f"the driver {nvml.why}") if isinstance(nvml, ProbeFailure) else nvml,
        torch=None if isinstance(torch, ProbeFailure) else torch,
        torch_failure=torch.why if isinstance(torch, ProbeFailure) else None,
        packages=packages,
        toolchain=read_toolchain(),
    )


def judge(seen: Examination) -> list[Check]:
    """Every check, in the order in which a reader wants to know."""
    return [
        Check(
            "python", "ok", f"{seen.host.python_version} ({seen.host.python_path})", "nearpeak runs on 3.11 and later."
        ),
        _cpu(seen.host),
        _memory(seen.host),
        _shared_memory(seen.host),
        _nvidia(seen.host, seen.nvml),
        _torch(seen),
        _devices(seen),
        _bf16(seen),
        _threads(seen),
        _attention(seen),
        _compile(seen),
        _distributed(seen),
        *(_extra(extra, seen.packages) for extra in (None, "train", "hf", "tui")),
    ]


def _cpu(host: Host) -> Check:
    cores = _count(host.logical_cores, "core")
    if host.usable_cores is not None and host.usable_cores != host.logical_cores:
        cores = f"{host.usable_cores} of {cores}"
    if host.cgroup_cores is not None:
        cores += f", limited to {host.cgroup_cores:g} by the container"
    return Check(
        "cpu", "ok", f"{host.cpu_model or 'unknown model'}, {cores}", "Loader workers and CPU training use these."
    )


def _memory(host: Host) -> Check:
    found = f"{_gib(host.memory_bytes)}, {_gib(host.available_memory_bytes)} available"
    if host.cgroup_memory_bytes is not None:
        found += f", limited to {_gib(host.cgroup_memory_bytes)} by the container"
    return Check(
        "memory", "ok" if host.memory_bytes else None, found, "Data, loader workers and CPU training share it."
    )


def _shared_memory(host: Host) -> Check:
    size = host.shared_memory_bytes
    if size is None:
        return Check("shared memory", None, "no /dev/shm", "Loader workers hand batches over in another way here.")
    found = f"{_gib(size)} in /dev/shm, {_gib(host.free_shared_memory_bytes)} free"
    if size >= SMALL_SHARED_MEMORY_BYTES:
        return Check("shared memory", "ok", found, "Loader workers hand batches over through it.")
    return Check(
        "shared memory",
        "broken",
        found,
        "Too small for loader workers: they die with a bus error once batches fill it.",
        "Start the container with --shm-size=8g or --ipc=host, or keep loader.workers at 0.",
    )


def _nvidia(host: Host, nvml: NvmlReading) -> Check:
    if nvml.state == "ok":
        return _nvidia_devices(nvml)
    on_bus = None if host.pci_vendors is None else host.pci_vendors.count("nvidia")
    if nvml.state == "broken":
        return Check(
            "nvidia driver",
            "broken",
            nvml.detail or "does not answer",
            "No NVIDIA device can be used until it is repaired.",
            "Reboot if the driver was updated; otherwise reinstall it. `sudo dmesg | grep -i nvrm` tells more.",
        )
    if on_bus:
        return Check(
            "nvidia driver",
            "missing",
            f"{_count(on_bus, 'NVIDIA device')} on the bus, no driver",
            "The device is there and cannot be used.",
            "Install the NVIDIA driver; in a container, start it with --gpus all.",
        )
    return Check(
        "nvidia driver",
        "missing",
        "none",
        "No NVIDIA device is used.",
        "Only with an NVIDIA device: install its driver; in a container, start it with --gpus all.",
    )


def _nvidia_devices(nvml: NvmlReading) -> Check:
    lost = [f"device {device.index}: {device.fault}" for device in nvml.devices if device.fault]
    driver = f"{nvml.driver_version or 'unknown version'}, up to CUDA {nvml.cuda_version or '?'}"
    if lost:
        return Check(
            "nvidia driver",
            "broken",
            f"{driver}; {'; '.join(lost)}",
            "Not every device can be used.",
            "Reset the device (nvidia-smi --gpu-reset) or reboot; if it comes back, the hardware is failing.",
        )
    names = (
        ", ".join(f"{device.name or 'unknown'} {_gib(device.memory_bytes)}" for device in nvml.devices) or "no device"
    )
    return Check("nvidia driver", "ok", f"{driver}: {names}", "The driver answers.")


def _torch(seen: Examination) -> Check:
    if seen.torch_failure is not None:
        return Check(
            "torch",
            "broken",
            f"on import it {seen.torch_failure}" if " " in seen.torch_failure else seen.torch_failure,
            "Installed, but it cannot be imported; nothing trains.",
            "Reinstall it for this system: pip install --force-reinstall torch",
        )
    if seen.torch is None:
        return Check("torch", "missing", "not installed", "Nothing trains without it.", "pip install 'nearpeak[train]'")
    return Check("torch", "ok", f"{seen.torch.version}, {_built_for(seen.torch)}", "Training runs on it.")


def _built_for(torch: TorchBuild) -> str:
    builds = {"CUDA": torch.cuda, "ROCm": torch.rocm, "XPU": torch.xpu}
    return "built for " + (" and ".join(f"{name} {version}" for name, version in builds.items() if version) or "CPU")


def _devices(seen: Examination) -> Check:
    name = "training device"
    torch = seen.torch
    if torch is None:
        return Check(name, None, "unknown without torch", "See torch.")
    if torch.devices:
        found = ", ".join(f"{device.kind}:{device.index} {device.name or ''}".strip() for device in torch.devices)
        return Check(name, "ok", found, "Training runs here.")
    if torch.fault:
        return Check(name, "broken", torch.fault, "Training falls to the CPU.", "Match torch's build to the driver.")
    vendors = set(seen.host.pci_vendors or ()) & {"nvidia", "amd"}
    if seen.nvml.devices or (vendors and not (torch.cuda or torch.rocm)):
        return Check(
            name,
            "broken" if torch.cuda or torch.rocm else "missing",
            f"torch {torch.version} ({_built_for(torch)}) sees no device, the machine has one",
            "Training falls to the CPU.",
            "Install the build of torch for this device: pytorch.org/get-started names it.",
        )
    return Check(
        name,
        "missing",
        "none",
        "The CPU trains: everything works, slower than on a GPU.",
        "A machine with an NVIDIA, AMD, Intel or Apple GPU.",
    )


def _bf16(seen: Examination) -> Check:
    if seen.torch is not None and seen.torch.devices:
        device, native = seen.torch.devices[0].name or "the device", seen.torch.devices[0].bf16
        remedy = "Use precision fp16 on this device."
    else:
        device, native = "the CPU", seen.host.has_native_bf16
        remedy = "Stay with fp32 here; CPUs with avx512_bf16 or amx_bf16 have it."
    if native is None:
        return Check("bf16", None, f"{device}: unknown", "nearpeak measures before it chooses a precision.")
    if native:
        return Check("bf16", "ok", f"{device} computes in it", "About half the time and memory of fp32, where allowed.")
    return Check("bf16", "missing", f"{device} only emulates it", "bf16 works and is slow.", remedy)


def _threads(seen: Examination) -> Check:
    cores = seen.host.effective_cores
    if seen.torch is None or cores is None:
        return Check("cpu threads", None, "unknown", "See torch.")
    found = f"torch starts {_count(seen.torch.threads, 'thread')} on {cores:g} usable cores"
    if seen.torch.threads <= max(1, cores):
        return Check("cpu threads", "ok", found, "They do not fight for cores.")
    return Check(
        "cpu threads",
        "broken",
        found,
        "Threads wait for each other; several times slower is common.",
        f"export OMP_NUM_THREADS={max(1, int(cores))}, or threads = {max(1, int(cores))} in the plan.",
    )


def _attention(seen: Examination) -> Check:
    torch = seen.torch
    if torch is None:
        return Check("attention", None, "unknown without torch", "See torch.")
    kernels = list(torch.attention)
    kernels += ["flex"] if torch.has_flex_attention else []
    kernels += ["varlen"] if torch.has_varlen_attention else []
    if "flash" in torch.attention:
        return Check("attention", "ok", ", ".join(kernels), "Long texts need no quadratic memory.")
    return Check(
        "attention",
        "missing",
        ", ".join(kernels) or "none",
        "No flash kernel runs on this device: memory grows with the square of the length.",
        "A newer torch, or a device of compute capability 8.0 or later.",
    )


def _compile(seen: Examination) -> Check:
    tools, torch = seen.toolchain, seen.torch
    lacking = [] if tools.compiler else ["a C++ compiler (apt install g++)"]
    lacking += [] if tools.python_headers else ["Python's headers (apt install python3-dev)"]
    on_gpu = bool(torch and any(device.kind in ("cuda", "xpu") for device in torch.devices))
    lacking += ["Triton (pip install triton)"] if on_gpu and not tools.triton_version else []
    found = ", ".join(filter(None, [tools.compiler, tools.triton_version and f"triton {tools.triton_version}"]))
    if not lacking:
        return Check("compile", "ok", found, "torch.compile has its tools; plans may use compile = 'blocks'.")
    meaning = "torch.compile cannot run; plans with compile = 'none' can."
    return Check("compile", "missing", found or "no compiler", meaning, f"Install {' and '.join(lacking)}.")


def _distributed(seen: Examination) -> Check:
    if seen.torch is None:
        return Check("distributed", None, "unknown without torch", "See torch.")
    backends = ", ".join(seen.torch.backends)
    on_cuda = any(device.kind == "cuda" for device in seen.torch.devices)
    if on_cuda and "nccl" not in seen.torch.backends:
        return Check(
            "distributed",
            "missing",
            backends or "none",
            "Several GPUs need nccl.",
            "Install a CUDA build of torch for Linux.",
        )
    if not seen.torch.backends:
        return Check(
            "distributed", "missing", "none", "One process only: torchrun cannot be used.", "Another build of torch."
        )
    return Check("distributed", "ok", backends, "torchrun with several processes works.")


def _extra(extra: str | None, packages: Iterable[InstalledPackage]) -> Check:
    """One extra: what is installed of it, against the supported versions."""
    members = [found for found in packages if found.package.extra == extra]
    name = f"extra {extra}" if extra else "base packages"
    target = f"pip install 'nearpeak[{extra}]'" if extra else "pip install --upgrade nearpeak"
    meaning = "For " + "; ".join(dict.fromkeys(found.package.purpose for found in members)) + "."
    listed = ", ".join(f"{found.package.name} {found.version}" for found in members if found.version)
    wrong = [f"{found.package.name} {found.package.supported}" for found in members if found.is_supported is False]
    if wrong:
        return Check(name, "broken", f"{listed}; needs {', '.join(wrong)}", meaning, target)
    absent = [found.package.name for found in members if found.version is None]
    if absent:
        listed = f"{listed}; without {', '.join(absent)}" if listed else f"without {', '.join(absent)}"
        return Check(name, "missing", listed, meaning, target)
    return Check(name, "ok", listed, meaning)


def _gib(size: int | None) -> str:
    if size is None:
        return "unknown"
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"


def _count(number: int | None, noun: str) -> str:
    return f"unknown {noun}s" if number is None else f"{number} {noun}{'' if number == 1 else 's'}"
