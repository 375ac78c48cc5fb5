"""AMD through a fake amdsmi, Apple and Intel through a fake torch."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from nearpeak.hardware.live.amd_source import AmdSource
from nearpeak.hardware.live.torch_source import TorchSource
from nearpeak.hardware.reading import FIGURES, Reading


class AmdSmiException(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class FakeAmdSmi:
    """Answers in amdsmi's shapes for one MI300X; `refused` maps a function to the code that it raises."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = IntEnum("AmdSmiClkType", {"GFX": 0, "MEM": 4})
    AmdSmiTemperatureType = IntEnum("AmdSmiTemperatureType", {"HOTSPOT": 1, "VRAM": 2})
    AmdSmiTemperatureMetric = IntEnum("AmdSmiTemperatureMetric", {"CURRENT": 0})

    def __init__(self, **refused: int) -> None:
        self.refused = refused
        self.answers: dict[str, Any] = {
            "amdsmi_init": None,
            "amdsmi_shut_down": None,
            "amdsmi_get_processor_handles": ["handle"],
            "amdsmi_get_gpu_asic_info": {
                "market_name": "AMD Instinct MI300X",
                "device_id": "0x74a1",
                "asic_serial": "0x1",
                "num_compute_units": 304,
            },
            "amdsmi_get_gpu_board_info": {"product_name": "N/A"},
            "amdsmi_get_gpu_driver_info": {"driver_version": "6.12.12"},
            "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
            "amdsmi_get_gpu_device_uuid": "a1ff74a1-0000-1000-80a1-000000000000",
            "amdsmi_get_gpu_activity": {"gfx_activity": 93, "umc_activity": 40, "mm_activity": "N/A"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 1024},
            "amdsmi_get_power_info": {"current_socket_power": 650, "average_socket_power": "N/A"},
            "amdsmi_get_power_cap_info": {
                "power_cap": 750_000_000,
                "max_power_cap": 750,
                "default_power_cap": 0xFFFFFFFF,
            },
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0},
            "amdsmi_get_pcie_info": {
                "pcie_static": {"max_pcie_width": 16},
                "pcie_metric": {"pcie_width": 8, "pcie_replay_count": 2},
            },
            "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100},
            "amdsmi_get_temp_metric": 71,
            "amdsmi_get_gpu_process_list": [{"pid": 7, "name": "python", "memory_usage": {"vram_mem": 1 << 30}}],
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            if name in self.refused:
                raise AmdSmiException(self.refused[name])
            return self.answers[name]

        return answer


def read(smi: FakeAmdSmi) -> tuple[AmdSource, Reading]:
    source = AmdSource(smi)
    source.open()
    (reading,) = source.read()
    source.close()
    return source, reading


def test_amd_figures_are_si_and_what_is_not_available_is_none() -> None:
    source, reading = read(FakeAmdSmi())
    (device,) = source.devices
    assert (device.name, device.pci_id, device.multiprocessors) == ("AMD Instinct MI300X", "1002:74a1", 304)
    assert (reading.busy_percent, reading.memory_busy_percent) == (93.0, 40.0)
    assert (reading.memory_total_bytes, reading.memory_used_bytes) == (196592 << 20, 1 << 30)
    assert (reading.power_w, reading.power_instant_w, reading.power_average_w) == (650.0, 650.0, None)
    assert (reading.power_limit_w, reading.power_limit_max_w, reading.power_limit_default_w) == (750.0, 750.0, None)
    assert (reading.pcie_width, reading.pcie_width_max, reading.pcie_replays) == (8, 16, 2)
    assert (reading.clock_hz, reading.clock_max_hz, reading.temperature_c) == (2.1e9, 2.1e9, 71.0)
    assert reading.processes is not None and reading.processes[0].memory_bytes == 1 << 30
    for name in FIGURES:
        assert (getattr(reading, name) is None) == (name in reading.missing)


def test_amd_refusals_have_reasons() -> None:
    _, reading = read(FakeAmdSmi(amdsmi_get_gpu_activity=2, amdsmi_get_power_info=10, amdsmi_get_gpu_vram_usage=99))
    why = [reading.why_missing(name) for name in ("busy_percent", "power_w", "memory_used_bytes")]
    assert why == ["unsupported", "no_permission", "error"]


def test_a_broken_amd_driver_is_a_state() -> None:
    source = AmdSource(FakeAmdSmi(amdsmi_init=34))
    source.open()
    assert (source.state, source.detail, source.read()) == ("broken", "code 34", [])


def fake_torch() -> Any:
    xpu = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_name=lambda index: "Intel(R) Arc(TM) B580 Graphics",
        mem_get_info=lambda index: (3 << 30, 12 << 30),
    )
    mps = SimpleNamespace(recommended_max_memory=lambda: 20 << 30)
    return SimpleNamespace(xpu=xpu, mps=mps, backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)))


@pytest.mark.parametrize(("vendor", "used"), [("intel", 9 << 30), ("apple", None)])
def test_what_torch_tells_of_intel_and_apple(vendor: str, used: int | None) -> None:
    source = TorchSource(fake_torch())
    source.vendor = vendor
    source.open()
    (reading,) = source.read()
    assert source.state == "ok" and source.devices[0].vendor == vendor
    assert reading.memory_used_bytes == used and reading.memory_total_bytes
    assert reading.why_missing("busy_percent") == "unsupported"
