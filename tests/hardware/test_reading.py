from __future__ import annotations

import dataclasses

import msgspec
import pytest

from nearpeak.errors import SettingError
from nearpeak.hardware.reading import FIGURES, THROTTLE_REASONS, Device, ProcessUse, Reading

UNITS = ("percent", "bytes", "w", "j", "hz", "c", "s", "rpm")
# Counts, names and states have no unit.
PLAIN = """
    performance_state fans throttle_reasons pcie_generation pcie_generation_max pcie_generation_device_max
    pcie_width pcie_width_max pcie_replays nvlink_links nvlink_links_max nvlink_errors ecc_enabled ecc_corrected
    ecc_uncorrected ecc_corrected_lifetime ecc_uncorrected_lifetime rows_remapped_corrected
    rows_remapped_uncorrected row_remap_pending row_remap_failed pages_retired page_retirement_pending xid
    xid_events compute_mode persistence mig_enabled reset_needed
"""


def test_nothing_is_known_until_it_is_read() -> None:
    reading = Reading(at_ns=1, device=0)
    assert all(getattr(reading, name) is None for name in FIGURES)
    assert {reading.why_missing(name) for name in FIGURES} == {"not_asked"}
    assert reading.processes is None


def test_every_figure_names_its_unit_or_has_none() -> None:
    without = {name for name in FIGURES if not name.endswith(tuple(f"_{unit}" for unit in UNITS))}
    assert without == set(PLAIN.split())


def test_why_a_figure_is_missing_is_said() -> None:
    reading = Reading(at_ns=1, device=0, busy_percent=0.0, missing={"power_w": "unsupported"})
    assert reading.why_missing("power_w") == "unsupported"
    assert reading.why_missing("busy_percent") is None  # zero is a value


def test_a_known_figure_cannot_be_missing_and_a_reason_is_one_of_ours() -> None:
    with pytest.raises(SettingError, match="is known"):
        Reading(at_ns=1, device=0, busy_percent=0.0, missing={"busy_percent": "unsupported"})
    with pytest.raises(SettingError, match="must be one of unsupported"):
        Reading(at_ns=1, device=0, missing={"busy_percent": "because"})  # type: ignore[dict-item]


def test_an_idle_device_is_not_slowed() -> None:
    idle = Reading(at_ns=1, device=0, throttle_reasons=("idle",))
    assert idle.slowing == ()
    hot = Reading(at_ns=1, device=0, throttle_reasons=("idle", "thermal", "bit_0x200"))
    assert hot.slowing == ("thermal",)
    assert Reading(at_ns=1, device=0).slowing is None


def test_bits_of_throttle_reasons_are_distinct() -> None:
    bits = [reason.bit for reason in THROTTLE_REASONS.values()]
    assert len(set(bits)) == len(bits) and all(bit & (bit - 1) == 0 for bit in bits)


def test_readings_and_devices_survive_json() -> None:
    use = ProcessUse(pid=7, memory_bytes=None, name="python")
    reading = Reading(at_ns=1, device=0, mig=2, processes=(use,), throttle_reasons=("power_cap",), other={"x_ms": 1.5})
    assert msgspec.json.decode(msgspec.json.encode(reading), type=Reading) == reading
    device = Device(index=0, mig=2, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", compute_capability=(9, 0))
    assert msgspec.json.decode(msgspec.json.encode(device), type=Device) == device
    assert device.key == reading.key == "0:2"


def test_a_reading_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Reading(at_ns=1, device=0).busy_percent = 1.0  # type: ignore[misc]
