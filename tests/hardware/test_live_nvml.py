"""The stub driver, read through the real nvidia-ml-py in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stub_nvml import (
    GIB,
    StubDevice,
    describe,
    environment,
    geforce,
    h100,
    h100_cut,
    has_compiler,
    lying,
    silent,
)

from nearpeak.hardware.reading import FIGURES

pytestmark = pytest.mark.skipif(not has_compiler(), reason="the stub driver needs gcc on Linux")
READER = Path(__file__).parent / "stub" / "read_stub.py"
KNOWN_ON_EVERY_READING = {"at_ns", "device", "state", "other"}


@dataclass
class Stub:
    library: Path
    folder: Path

    def run(self, devices: list[StubDevice], *arguments: str, missing: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        description = describe(self.folder / "devices.txt", devices, missing=missing)
        command = [sys.executable, str(READER), *arguments]
        done = subprocess.run(
            command, env=environment(self.library, description), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def once(self, *devices: StubDevice, missing: tuple[str, ...] = ()) -> dict[str, Any]:
        return self.run(list(devices), "once", "0", "5", missing=missing)[0]


@pytest.fixture
def stub(stub_library: Path, tmp_path: Path) -> Stub:
    return Stub(stub_library, tmp_path)


def known(reading: dict[str, Any]) -> dict[str, Any]:
    return {name: reading[name] for name in FIGURES if reading.get(name) is not None}


def check_reasons(reading: dict[str, Any]) -> None:
    """Each figure is known, or there is a reason why not, and never both."""
    for name in FIGURES:
        assert (reading.get(name) is None) == (name in reading["missing"]), name


H100_FIGURES: dict[str, Any] = {
    "busy_percent": 97.0,
    "memory_busy_percent": 41.0,
    "encoder_percent": 0.0,
    "decoder_percent": 1.0,
    "jpeg_percent": 0.0,
    "optical_flow_percent": 0.0,
    "engine_percent": 96.4,
    "sm_busy_percent": 88.12,
    "sm_occupancy_percent": 31.5,
    "integer_percent": 10.25,
    "tensor_percent": 47.12,
    "tensor_half_percent": 47.1,
    "tensor_double_percent": 0.0,
    "tensor_integer_percent": 0.0,
    "dram_percent": 52.75,
    "fp64_percent": 0.0,
    "fp32_percent": 6.5,
    "fp16_percent": 1.5,
    "pcie_sent_bytes_per_s": 100.5 * 2**20,
    "pcie_received_bytes_per_s": 2000.25 * 2**20,
    "nvlink_received_bytes_per_s": 40000 * 2**20,
    "nvlink_sent_bytes_per_s": 41000 * 2**20,
    "memory_total_bytes": 81559 << 20,
    "memory_used_bytes": 61 * GIB,
    "memory_reserved_bytes": 592 << 20,
    "memory_free_bytes": (81559 << 20) - (592 << 20) - 61 * GIB,
    "bar1_total_bytes": 128 * GIB,
    "bar1_used_bytes": 2 << 20,
    "power_w": 431.123,
    "power_average_w": 431.123,
    "power_instant_w": 512.5,
    "power_limit_w": 700.0,
    "power_limit_set_w": 700.0,
    "power_limit_default_w": 700.0,
    "power_limit_min_w": 200.0,
    "power_limit_max_w": 700.0,
    "clock_hz": 1.74e9,
    "clock_max_hz": 1.98e9,
    "clock_graphics_hz": 1.755e9,
    "clock_graphics_max_hz": 1.98e9,
    "clock_memory_hz": 2.619e9,
    "clock_memory_max_hz": 2.619e9,
    "clock_video_hz": 1.545e9,
    "clock_video_max_hz": 1.545e9,
    "clock_application_hz": 1.98e9,
    "clock_application_memory_hz": 2.619e9,
    "performance_state": 0,
    "temperature_c": 61.0,
    "temperature_memory_c": 55.0,
    "temperature_margin_c": 26.0,
    "temperature_shutdown_c": 92.0,
    "temperature_slowdown_c": 89.0,
    "temperature_memory_max_c": 95.0,
    "temperature_target_c": 87.0,
    "throttle_reasons": ["power_cap"],
    "throttled_thermal_s": 0.0,
    "throttled_hardware_thermal_s": 1.0,
    "throttled_power_brake_s": 0.0,
    "throttled_sync_boost_s": 0.0,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_generation_device_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replays": 3,
    "nvlink_links": 18,
    "nvlink_links_max": 18,
    "nvlink_link_bytes_per_s": 26562e6,
    "nvlink_errors": 3,
    "ecc_enabled": True,
    "ecc_corrected": 2,
    "ecc_uncorrected": 0,
    "ecc_corrected_lifetime": 5,
    "ecc_uncorrected_lifetime": 1,
    "rows_remapped_corrected": 1,
    "rows_remapped_uncorrected": 0,
    "row_remap_pending": False,
    "row_remap_failed": False,
    "xid_events": 0,
    "compute_mode": "default",
    "persistence": True,
    "mig_enabled": False,
    "reset_needed": False,
}
H100_GROWING = {
    "energy_j": (9_876_543.21, 9_880_000.0),
    "throttled_power_s": (12.5, 20.0),
    "nvlink_sent_bytes": (1000 * 1024, 10**10),
    "nvlink_received_bytes": (2000 * 1024, 2 * 10**10),
}
H100_MISSING = {
    **dict.fromkeys(("module_power_w", "module_power_limit_w", "memory_power_w"), "unsupported"),
    **dict.fromkeys(("fan_percent", "fan_rpm", "fans", "pages_retired", "page_retirement_pending"), "unsupported"),
    "xid": "not_yet",
}


def test_every_figure_of_an_h100(stub: Stub) -> None:
    snapshot = stub.once(h100(pids=(os.getpid(),)))
    (device,), (reading,) = snapshot["devices"], snapshot["readings"]
    figures = known(reading)
    for name, (low, high) in H100_GROWING.items():
        assert low <= figures.pop(name) < high, name
    assert figures == H100_FIGURES
    assert reading["missing"] == H100_MISSING
    assert set(H100_FIGURES) | set(H100_GROWING) | set(H100_MISSING) == set(FIGURES)
    expected = {
        "index": 0,
        "vendor": "nvidia",
        "name": "NVIDIA H100 80GB HBM3",
        "pci_id": "10de:2330",
        "pci_subsystem_id": "10de:16c1",
        "pci_bus_id": "00000000:1A:00.0",
        "compute_capability": [9, 0],
        "architecture": "Hopper",
        "numa_node": 0,
        "cpu_affinity": "0-15",
        "driver_version": "590.48.01",
        "cuda_version": "13.1",
        "vbios_version": "96.00.74.00.01",
        "serial": "1650000000000",
    }
    assert {name: device[name] for name in expected} == expected


def test_processes_have_their_owner(stub: Stub) -> None:
    (reading,) = stub.once(h100(pids=(os.getpid(), 4_000_000)))["readings"]
    by_pid = {use["pid"]: use for use in reading["processes"]}
    own, foreign = by_pid[os.getpid()], by_pid[4_000_000]
    assert own["kind"] == "compute" and own["busy_percent"] == 90.0 and own["memory_bytes"] == 61 * GIB // 2
    assert own["name"] and own["host_memory_bytes"] > 1 << 20 and own["user"]
    assert foreign["name"] is None and foreign["memory_bytes"] == 61 * GIB // 2


def test_a_card_that_is_cut_into_instances(stub: Stub) -> None:
    snapshot = stub.once(h100_cut(pid=os.getpid()))
    card, busy, idle = snapshot["readings"]
    assert [device["mig"] for device in snapshot["devices"]] == [None, 0, 1]
    assert [device["mig_profile"] for device in snapshot["devices"]] == [None, "3g.40gb", "3g.40gb"]
    assert card["mig_enabled"] is True
    for name in ("busy_percent", "memory_busy_percent", "encoder_percent"):
        assert card[name] is None and card["missing"][name] == "unsupported"
    assert card["power_w"] == 431.123 and card["sm_busy_percent"] == 88.12
    assert (busy["sm_busy_percent"], busy["tensor_percent"], busy["dram_percent"]) == (71.5, 30.25, 20.5)
    assert busy["memory_total_bytes"] == 40448 << 20 and busy["memory_used_bytes"] == 18 * GIB
    assert busy["missing"]["power_w"] == busy["missing"]["busy_percent"] == "unsupported"  # the card's, not its own
    (use,) = busy["processes"]
    assert (use["gpu_instance"], use["compute_instance"]) == (1, 0)
    assert idle["sm_busy_percent"] == 0.0 and idle["dram_percent"] is None and idle["processes"] == []
    for reading in (card, busy, idle):
        check_reasons(reading)


def test_a_card_for_games(stub: Stub) -> None:
    (reading,) = stub.once(geforce(pid=os.getpid()))["readings"]
    check_reasons(reading)
    assert reading["throttle_reasons"] == []  # none: not unknown
    assert (reading["pcie_width"], reading["pcie_width_max"]) == (8, 16)
    assert (reading["fan_percent"], reading["fan_rpm"], reading["fans"]) == (33.0, 1240.0, 2)
    assert (reading["pcie_sent_bytes_per_s"], reading["pcie_received_bytes_per_s"]) == (120e6, 3500e6)
    for name in ("ecc_enabled", "ecc_corrected", "sm_busy_percent", "nvlink_links", "power_average_w", "xid_events"):
        assert reading["missing"][name] == "unsupported"
    (use,) = reading["processes"]
    assert use["kind"] == "compute+graphics" and use["memory_bytes"] == 900 << 20 and use["busy_percent"] == 30.0


def test_a_device_that_says_nothing_gives_no_zero(stub: Stub) -> None:
    (reading,) = stub.once(silent())["readings"]
    check_reasons(reading)
    assert known(reading) == {"clock_hz": 1.575e9}
    assert set(reading["missing"].values()) == {"unsupported"}
    assert reading["processes"] is None and reading["state"] == "ok"


def test_zeros_of_a_device_that_cannot_be_true(stub: Stub) -> None:
    (reading,) = stub.once(lying())["readings"]
    check_reasons(reading)
    assert known(reading) == {}
    for name in ("busy_percent", "memory_used_bytes", "power_w", "temperature_c", "clock_hz"):
        assert reading["missing"][name] == "implausible"


def test_busy_zero_while_its_counters_work_is_not_believed(stub: Stub) -> None:
    device = h100()
    device.numbers["utilization"] = (0, 0)
    (reading,) = stub.once(device)["readings"]
    assert reading["missing"]["busy_percent"] == "implausible" and reading["sm_busy_percent"] == 88.12


def test_an_idle_device_is_believed(stub: Stub) -> None:
    device = h100()
    device.numbers |= {"utilization": (0, 0), "gpm1": (0.0,), "gpm2": (0.0,), "power": (70_000,), "fan0": (0,)}
    (reading,) = stub.once(device)["readings"]
    assert reading["busy_percent"] == 0.0 and reading["memory_busy_percent"] == 0.0


def test_a_call_that_hangs_does_not_hold_the_others(stub: Stub, tmp_path: Path) -> None:
    hung = h100(0)
    switch = tmp_path / "hang"
    hung.hang = ("power", switch)
    lines = stub.run([hung, h100(1)], "6", "0.15", "0.3", f"+{switch}")
    took = [line["took_s"] for line in lines]
    first, *rest = [line["snapshot"]["readings"] for line in lines]
    assert [reading["state"] for reading in first] == ["ok", "ok"]
    for hanging, free in rest:
        check_reasons(hanging)
        assert hanging["state"] == "hung" and hanging["fault"].startswith("nvmlDeviceGetPowerUsage has not returned")
        assert hanging["missing"]["power_w"] == "timeout" and hanging["busy_percent"] is None
        assert free["state"] == "ok" and free["power_w"] == 431.123
    assert took[1] < 2 and max(took[2:]) < 0.3  # its patience once, then nothing


def test_a_device_that_falls_off_the_bus_and_one_whose_slow_questions_hang(stub: Stub, tmp_path: Path) -> None:
    lost, slow = h100(0), h100(1)
    lost.lost = tmp_path / "lost"
    slow.hang = ("replays", tmp_path / "never")
    (tmp_path / "never").touch()
    lines = stub.run([lost, slow, h100(2)], "3", "0.12", "0.3", f"+{tmp_path / 'lost'}")
    assert [r["state"] for r in lines[0]["snapshot"]["readings"]] == ["ok", "ok", "ok"]
    gone, waiting, fine = lines[2]["snapshot"]["readings"]
    assert gone["state"] == "lost" and gone["fault"] == "GPU is lost"
    assert set(gone["missing"].values()) == {"lost"} and known(gone) == {"xid_events": 0}
    assert waiting["state"] == "ok" and waiting["missing"]["pcie_replays"] == "not_yet"
    assert fine["state"] == "ok" and fine["busy_percent"] == 97.0
    assert [device["index"] for device in lines[2]["snapshot"]["devices"]] == [0, 1, 2]


def test_an_error_event_is_counted(stub: Stub, tmp_path: Path) -> None:
    device = h100()
    device.xid = tmp_path / "xid"
    lines = stub.run([device], "4", "0.2", "1", f"+{device.xid}")
    readings = [line["snapshot"]["readings"][0] for line in lines]
    assert (readings[0]["xid"], readings[0]["xid_events"]) == (None, 0)
    assert readings[0]["missing"]["xid"] == "not_yet"
    assert (readings[-1]["xid"], readings[-1]["xid_events"]) == (79, 1)


def test_what_is_refused_for_good_is_not_asked_again(stub: Stub) -> None:
    lines = stub.run([silent()], "4", "0.3", "1")
    counts = [line["calls"] for line in lines]
    assert counts[0] > 15
    assert counts[3] - counts[2] == 1  # its clock, the only thing that it says
    check_reasons(lines[3]["snapshot"]["readings"][0])


def test_an_older_library_lacks_functions(stub: Stub) -> None:
    missing = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetFanSpeed_v2",
        "nvmlDeviceGetNumFans",
    )
    (reading,) = stub.once(geforce(), missing=missing)["readings"]
    check_reasons(reading)
    assert reading["memory_used_bytes"] == (17_304 + 400) << 20  # what the driver keeps cannot be told apart
    assert reading["missing"]["memory_reserved_bytes"] == "unsupported"
    assert reading["throttle_reasons"] == [] and reading["fan_percent"] == 30.0
    assert reading["missing"]["power_instant_w"] == reading["missing"]["throttled_power_s"] == "unsupported"


def test_each_refusal_has_its_reason(stub: Stub) -> None:
    codes = {3: "unsupported", 2: "unsupported", 13: "unsupported", 4: "no_permission", 10: "timeout", 999: "error"}
    devices = [h100(index) for index in range(len(codes))]
    for device, code in zip(devices, codes, strict=True):
        device.errors |= {"power": code, "ecc00": code, "utilization": code}
    for reading, why in zip(stub.once(*devices)["readings"], codes.values(), strict=True):
        check_reasons(reading)
        assert {reading["missing"][name] for name in ("power_w", "ecc_corrected", "busy_percent")} == {why}
        assert reading["state"] == "ok" and reading["temperature_c"] == 61.0


def test_a_device_that_cannot_be_opened_is_listed(stub: Stub) -> None:
    broken = h100(0)
    broken.numbers["handle"] = (0,)
    broken.errors["handle"] = 15
    snapshot = stub.once(broken, h100(1))
    assert [reading["state"] for reading in snapshot["readings"]] == ["lost", "ok"]
    assert snapshot["readings"][0]["fault"] == "GPU is lost"


def test_a_machine_without_devices_and_one_without_driver(stub: Stub) -> None:
    assert stub.once()["devices"] == []
    done = subprocess.run(
        [sys.executable, str(READER), "once", "0", "1"],
        env=environment(stub.library, stub.folder / "absent.txt"),
        capture_output=True,
        text=True,
        check=True,
    )
    (source,) = json.loads(done.stdout)["sources"]
    assert source["state"] == "broken" and "kernel module" in source["detail"]


def test_any_code_for_any_question_is_survived(stub: Stub) -> None:
    rng = random.Random(5)
    devices = [h100(index) for index in range(12)]
    for device in devices:
        keys = [key for key in device.numbers if key != "handle"]
        codes = [code for code in (*range(1, 31), 999) if code not in (15, 28)]  # these two: off the bus
        device.errors |= {key: rng.choice(codes) for key in rng.sample(keys, len(keys) // 2)}
    for reading in stub.once(*devices)["readings"]:
        assert reading["state"] == "ok"
        check_reasons(reading)
    devices[0].errors |= {"clock1": 28}
    assert stub.once(devices[0])["readings"][0]["state"] == "lost"
