from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nearpeak.hardware import nvml as nvml_module
from nearpeak.hardware.nvml import NvmlReading, read_nvml


class NVMLError(Exception):
    def __init__(self, value: int, text: str = "Unknown Error") -> None:
        super().__init__(text)
        self.value = value


class FakeNvml:
    """The functions of pynvml that nearpeak calls; a test breaks one by name."""

    NVMLError = NVMLError

    def __init__(self, devices: int = 2, **broken: Exception) -> None:
        self.devices, self.broken, self.shut_down = devices, broken, False

    def __getattribute__(self, name: str) -> Any:
        broken = object.__getattribute__(self, "broken") if name != "broken" else {}
        if name in broken:

            def fail(*arguments: Any) -> Any:
                raise broken[name]

            return fail
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.shut_down = True

    def nvmlSystemGetDriverVersion(self) -> str:
        return "590.48.01"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1 and "lost" in self.broken:
            raise self.broken["lost"]
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId="00000000:0A:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 << 30, used=0)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [0, 0]


def test_a_healthy_driver() -> None:
    fake = FakeNvml()
    reading = read_nvml(fake)
    assert (reading.state, reading.driver_version, reading.cuda_version) == ("ok", "590.48.01", "13.1")
    assert [device.uuid for device in reading.devices] == ["GPU-0", "GPU-1"]
    assert reading.devices[0].name == "NVIDIA H100 80GB HBM3"
    assert reading.devices[0].used_memory_bytes == 0
    assert reading.devices[0].mig_enabled is False
    assert fake.shut_down


def test_what_a_device_will_not_say_is_none_not_zero() -> None:
    reading = read_nvml(FakeNvml(1, nvmlDeviceGetMemoryInfo=NVMLError(3), nvmlDeviceGetMigMode=NVMLError(3)))
    assert reading.state == "ok"
    assert reading.devices[0].memory_bytes is None
    assert reading.devices[0].mig_enabled is None
    assert reading.devices[0].uuid == "GPU-0"


def test_a_lost_device_does_not_hide_the_others() -> None:
    first, second = read_nvml(FakeNvml(2, lost=NVMLError(15, "GPU is lost"))).devices
    assert (first.fault, first.memory_bytes) == (None, 80 << 30)
    assert (second.fault, second.memory_bytes, second.index) == ("GPU is lost", None, 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NVMLError(9, "Driver Not Loaded"), "kernel module is not loaded"),
        (NVMLError(18, "mismatch"), "different versions"),
        (NVMLError(999, "Unknown Error"), "Unknown Error"),
        (OSError("libcuda: bad ELF"), "bad ELF"),
        (AttributeError("no symbol nvmlInit_v2"), "nvmlInit_v2"),
    ],
)
def test_a_broken_driver_is_a_state_not_a_crash(error: Exception, said: str) -> None:
    reading = read_nvml(FakeNvml(nvmlInit=error))
    assert reading.state == "broken"
    assert said in (reading.detail or "")
    assert reading.devices == ()


def test_a_driver_that_breaks_after_the_start() -> None:
    fake = FakeNvml(nvmlDeviceGetCount=NVMLError(999))
    assert read_nvml(fake).state == "broken"
    assert fake.shut_down


@pytest.mark.parametrize(
    ("loader_says", "expected"),
    [
        ("libnvidia-ml.so.1: cannot open shared object file: No such file or directory", NvmlReading(state="missing")),
        ("libnvidia-ml.so.1: file too short", NvmlReading(state="broken", detail="libnvidia-ml.so.1: file too short")),
    ],
)
def test_a_damaged_library_is_not_an_absent_one(
    monkeypatch: pytest.MonkeyPatch, loader_says: str, expected: NvmlReading
) -> None:
    def load(name: str) -> Any:
        raise OSError(loader_says)

    monkeypatch.setattr(nvml_module.ctypes, "CDLL", load)
    assert read_nvml(FakeNvml(nvmlInit=NVMLError(12))) == expected
