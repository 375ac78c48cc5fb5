from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nearpeak.hardware.checks import Check, Examination, judge
from nearpeak.hardware.host import Host
from nearpeak.hardware.nvml import NvmlDevice, NvmlReading
from nearpeak.hardware.packages import PACKAGES, InstalledPackage, is_supported
from nearpeak.hardware.toolchain import Toolchain
from nearpeak.hardware.torch_build import TorchBuild, TorchDevice

HOST = Host(
    system="Linux",
    python_version="3.12.1",
    python_path="/usr/bin/python3",
    cpu_model="A CPU",
    cpu_flags=("avx2",),
    physical_cores=32,
    logical_cores=64,
    usable_cores=64,
    cgroup_cores=None,
    memory_bytes=64 << 30,
    available_memory_bytes=60 << 30,
    cgroup_memory_bytes=None,
    shared_memory_bytes=32 << 30,
    free_shared_memory_bytes=32 << 30,
    pci_vendors=("nvidia",),
)
H100 = TorchDevice(kind="cuda", index=0, name="NVIDIA H100", memory_bytes=80 << 30, bf16=True)
TORCH = TorchBuild(
    version="2.13.0",
    cuda="13.0",
    rocm=None,
    xpu=None,
    devices=(H100,),
    threads=32,
    cpu_capability="AVX512",
    attention=("flash", "math"),
    has_flex_attention=True,
    has_varlen_attention=True,
    backends=("gloo", "nccl"),
)
DEVICE = NvmlDevice(
    index=0,
    name="NVIDIA H100",
    uuid="GPU-0",
    pci_bus_id="0",
    memory_bytes=80 << 30,
    used_memory_bytes=0,
    compute_capability=(9, 0),
    mig_enabled=False,
)
NVML = NvmlReading(state="ok", driver_version="590.48", cuda_version="13.1", devices=(DEVICE,))
INSTALLED = tuple(
    InstalledPackage(package, "5.2" if package.name == "transformers" else "99", True) for package in PACKAGES
)
TOOLS = Toolchain(compiler="/usr/bin/g++", python_headers="/usr/include/python3.12", triton_version="3.5")
HEALTHY = Examination(host=HOST, nvml=NVML, torch=TORCH, torch_failure=None, packages=INSTALLED, toolchain=TOOLS)


def check(name: str, **changes: Any) -> Check:
    return next(check for check in judge(replace(HEALTHY, **changes)) if check.name == name)


def test_a_healthy_machine_is_ok_throughout() -> None:
    assert [check.name for check in judge(HEALTHY) if check.state != "ok"] == []


def test_names_are_a_stable_schema() -> None:
    names = [check.name for check in judge(HEALTHY)]
    assert names == [
        "python",
        "cpu",
        "memory",
        "shared memory",
        "nvidia driver",
        "torch",
        "training device",
        "bf16",
        "cpu threads",
        "attention",
        "compile",
        "distributed",
        "base packages",
        "extra train",
        "extra hf",
        "extra tui",
    ]


CPU_ONLY = replace(TORCH, version="2.13.0+cpu", cuda=None, devices=(), backends=("gloo",), threads=2)
EMPTY_BUS = replace(HOST, pci_vendors=())
NO_DRIVER = NvmlReading(state="missing")


@pytest.mark.parametrize(
    ("name", "changes", "state", "said"),
    [
        ("nvidia driver", {"nvml": NO_DRIVER}, "missing", "1 NVIDIA device on the bus, no driver"),
        ("nvidia driver", {"nvml": NO_DRIVER, "host": EMPTY_BUS}, "missing", "none"),
        ("nvidia driver", {"nvml": NvmlReading(state="broken", detail="file too short")}, "broken", "file too short"),
        (
            "nvidia driver",
            {"nvml": replace(NVML, devices=(DEVICE, replace(DEVICE, index=1, fault="GPU is lost")))},
            "broken",
            "device 1: GPU is lost",
        ),
        ("torch", {"torch": None}, "missing", "not installed"),
        ("torch", {"torch": None, "torch_failure": "crashed with SIGSEGV"}, "broken", "crashed with SIGSEGV"),
        ("training device", {"torch": CPU_ONLY}, "missing", "built for CPU"),
        ("training device", {"torch": replace(TORCH, devices=())}, "broken", "sees no device"),
        ("training device", {"torch": replace(TORCH, devices=(), fault="driver too old")}, "broken", "driver too old"),
        ("training device", {"torch": CPU_ONLY, "nvml": NO_DRIVER, "host": EMPTY_BUS}, "missing", "none"),
        ("training device", {"torch": None}, None, "unknown"),
        ("bf16", {"torch": replace(TORCH, devices=(replace(H100, bf16=False),))}, "missing", "emulates"),
        ("bf16", {"torch": CPU_ONLY}, "missing", "the CPU only emulates"),
        ("bf16", {"torch": CPU_ONLY, "host": replace(HOST, cpu_flags=("amx_bf16",))}, "ok", "the CPU computes"),
        ("bf16", {"torch": CPU_ONLY, "host": replace(HOST, cpu_flags=None)}, None, "unknown"),
        ("cpu threads", {"host": replace(HOST, cgroup_cores=2.0)}, "broken", "32 threads on 2 usable"),
        ("cpu threads", {"torch": None}, None, "unknown"),
        ("shared memory", {"host": replace(HOST, shared_memory_bytes=64 << 20)}, "broken", "64 MiB"),
        ("shared memory", {"host": replace(HOST, shared_memory_bytes=None)}, None, "no /dev/shm"),
        ("attention", {"torch": replace(TORCH, attention=("math",))}, "missing", "math, flex, varlen"),
        ("compile", {"toolchain": replace(TOOLS, compiler=None)}, "missing", "triton"),
        ("compile", {"toolchain": replace(TOOLS, triton_version=None)}, "missing", "g++"),
        ("compile", {"toolchain": replace(TOOLS, triton_version=None), "torch": CPU_ONLY}, "ok", "g++"),
        ("distributed", {"torch": replace(TORCH, backends=("gloo",))}, "missing", "gloo"),
        ("distributed", {"torch": replace(CPU_ONLY, backends=())}, "missing", "none"),
        ("memory", {"host": replace(HOST, cgroup_memory_bytes=4 << 30)}, "ok", "limited to 4.0 GiB"),
        ("memory", {"host": replace(HOST, memory_bytes=None)}, None, "unknown"),
        ("cpu", {"host": replace(HOST, usable_cores=4, cgroup_cores=1.5)}, "ok", "4 of 64 cores, limited to 1.5"),
    ],
)
def test_judgement(name: str, changes: dict[str, Any], state: str | None, said: str) -> None:
    found = check(name, **changes)
    assert (found.state, said in found.found) == (state, True), found
    assert found.state in ("ok", None) or found.remedy


def test_threads_remedy_names_the_number() -> None:
    assert "OMP_NUM_THREADS=2" in (check("cpu threads", host=replace(HOST, cgroup_cores=2.5)).remedy or "")


def packages_with(name: str, version: str | None) -> tuple[InstalledPackage, ...]:
    def changed(found: InstalledPackage) -> InstalledPackage:
        if found.package.name != name:
            return found
        return InstalledPackage(
            found.package, version, None if version is None else is_supported(version, found.package)
        )

    return tuple(map(changed, INSTALLED))


@pytest.mark.parametrize(
    ("version", "state", "said"),
    [
        ("5.23.0", "ok", "5.23.0"),
        ("4.57.3", "broken", "needs transformers >=5.0,<6"),
        (None, "missing", "without transf"),
    ],
)
def test_extras_against_the_supported_range(version: str | None, state: str, said: str) -> None:
    found = check("extra hf", packages=packages_with("transformers", version))
    assert (found.state, said in found.found) == (state, True)
    assert state == "ok" or found.remedy == "pip install 'nearpeak[hf]'"
