"""Readings of the machine that `nearpeak run` keeps beside the steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from nearpeak.hardware.live.sampler import DeviceSampler
from nearpeak.hardware.reading import Device, Reading
from nearpeak.launch.machine import MachineReader
from nearpeak.observe.sampler import Sampler
from nearpeak.recording import Recording, RowWriter, describe_run
from nearpeak.recording.writer import to_json


class OneCard:
    """A driver with one card that is cut in two."""

    vendor, state, detail = "nvidia", "ok", None
    devices = (Device(index=0, name="NVIDIA H200"), Device(index=0, mig=1, name="NVIDIA H200 MIG"))

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def ask_slow_now(self) -> None: ...

    def read(self) -> list[Reading]:
        figures: dict[str, Any] = {"busy_percent": 97.0, "power_w": 690.0, "throttle_reasons": ("power_cap",)}
        return [Reading(at_ns=time.time_ns(), device=0, **figures), Reading(at_ns=time.time_ns(), device=0, mig=1)]


def test_host_and_cards_become_rows_and_unknown_stays_unknown() -> None:
    with MachineReader(DeviceSampler([OneCard()])) as read:
        host, card = read()
    assert (host.device, card.device, card.name) == (-1, 0, "NVIDIA H200")
    assert (card.busy_percent, card.power_w, card.throttle_reasons) == (97.0, 690.0, "power_cap")
    assert card.memory_used_bytes is None and host.memory_total_bytes


def test_the_sampler_opens_writes_and_closes(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path)
    writer.write_info("run", to_json(describe_run()))
    writer.close()
    card = OneCard()
    sampler = Sampler(tmp_path, MachineReader(DeviceSampler([card])), every_s=0.01)
    sampler.start()
    time.sleep(0.15)
    sampler.stop()
    assert (card.opened, card.closed) == (1, 1)
    devices = {reading.device for reading in Recording(tmp_path).readings}
    assert devices == {-1, 0}
