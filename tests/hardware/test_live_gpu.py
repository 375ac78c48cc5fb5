"""Readings of a real NVIDIA device, held against work of known kind that runs on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nearpeak.hardware.gpu_table import gpu_of
from nearpeak.hardware.live.sampler import DeviceSampler, Snapshot
from nearpeak.hardware.reading import FIGURES, Reading

pytestmark = pytest.mark.gpu
GIB = 1 << 30


@contextmanager
def working(step: Callable[[], object]) -> Iterator[None]:
    """Repeat `step` on the device, on a thread of its own."""
    import torch

    stop, broke = threading.Event(), []

    def work() -> None:
        try:
            torch.cuda.set_device(0)  # a thread's first call must not be cuBLAS's
            while not stop.is_set():
                for _ in range(20):
                    step()
                torch.cuda.synchronize()
        except RuntimeError as error:  # told on the test's own thread
            broke.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        time.sleep(2.5)  # clocks and one-second means follow
        yield
    finally:
        stop.set()
        thread.join()
    assert not broke, broke


def second_reading(sampler: DeviceSampler) -> tuple[Snapshot, Reading]:
    sampler.read()
    time.sleep(1.0)
    snapshot = sampler.read()
    return snapshot, snapshot.readings[0]


def test_every_figure_is_known_or_has_a_reason() -> None:
    with DeviceSampler() as sampler:
        snapshot = sampler.read_once()
    reading, device = snapshot.readings[0], snapshot.devices[0]
    assert reading.state == "ok" and device.name and device.pci_id and device.uuid and device.driver_version
    for name in FIGURES:
        assert (getattr(reading, name) is None) == (name in reading.missing), name
    for name in ("memory_total_bytes", "memory_used_bytes", "power_w", "temperature_c", "clock_hz", "clock_max_hz"):
        assert getattr(reading, name), name


def test_what_torch_and_the_table_say_agrees() -> None:
    import torch

    with DeviceSampler() as sampler:
        snapshot = sampler.read_once()
    device, reading = snapshot.devices[0], snapshot.readings[0]
    properties = torch.cuda.get_device_properties(0)
    assert device.compute_capability == (properties.major, properties.minor)
    assert abs((reading.memory_total_bytes or 0) - properties.total_memory) < 2 * GIB
    known = gpu_of(device, reading.memory_total_bytes)
    if known is not None:  # a model that the table has
        assert known.multiprocessors in (None, properties.multi_processor_count)
        assert known.compute_capability == device.compute_capability
        assert (
            abs((known.memory_bytes or properties.total_memory) - properties.total_memory)
            < 0.05 * properties.total_memory
        )


def test_tensor_work_shows_on_tensor_cores_and_in_power() -> None:
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    with DeviceSampler() as sampler:
        _, idle = second_reading(sampler)
        with working(lambda: torch.matmul(a, a, out=out)):
            _, busy = second_reading(sampler)
    assert busy.busy_percent is not None and busy.busy_percent > 80
    assert busy.power_w is not None and idle.power_w is not None and busy.power_w > idle.power_w + 50
    if busy.why_missing("tensor_percent") == "unsupported":
        pytest.skip("this device has no performance counters")
    assert busy.tensor_percent is not None and busy.tensor_percent > 40
    assert busy.sm_busy_percent is not None and busy.sm_busy_percent > 70
    assert busy.tensor_half_percent is not None and busy.tensor_half_percent > 40


def test_copies_inside_the_device_show_as_bandwidth_and_not_as_tensor_work() -> None:
    import torch

    a = torch.randn(256 << 20, device="cuda")
    out = torch.empty_like(a)
    with DeviceSampler() as sampler, working(lambda: out.copy_(a)):
        _, busy = second_reading(sampler)
    if busy.why_missing("dram_percent") == "unsupported":
        pytest.skip("this device has no performance counters")
    assert busy.dram_percent is not None and busy.dram_percent > 50
    assert busy.tensor_percent is not None and busy.tensor_percent < 5


def test_a_small_kernel_keeps_the_device_busy_and_its_multiprocessors_idle() -> None:
    """The classic misreading: utilisation near 100 %, hardly anything at work."""
    import torch

    stream_cycles = 2_000_000
    with DeviceSampler() as sampler, working(lambda: torch.cuda._sleep(stream_cycles)):
        _, busy = second_reading(sampler)
    if busy.why_missing("sm_busy_percent") == "unsupported":
        pytest.skip("this device has no performance counters")
    assert busy.busy_percent is not None and busy.busy_percent > 80
    assert busy.sm_busy_percent is not None and busy.sm_busy_percent < 10


def test_copies_from_the_host_show_on_the_link() -> None:
    import torch

    host = torch.empty(64 << 20, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    with DeviceSampler() as sampler, working(lambda: device.copy_(host, non_blocking=True)):
        _, busy = second_reading(sampler)
    if busy.pcie_received_bytes_per_s is None:
        pytest.skip(f"PCIe traffic is {busy.why_missing('pcie_received_bytes_per_s')} here")
    assert busy.pcie_received_bytes_per_s > 2e9


def test_memory_and_the_process_that_holds_it() -> None:
    import torch

    with DeviceSampler() as sampler:
        before = sampler.read().readings[0].memory_used_bytes
        held = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        time.sleep(2.1)
        reading = sampler.read().readings[0]
    del held
    assert before is not None and reading.memory_used_bytes is not None
    assert reading.memory_used_bytes - before > 3.9 * GIB
    if not reading.processes:
        pytest.skip("the driver does not name processes in here")
    own = [use for use in reading.processes if use.pid == os.getpid()]
    if own and own[0].memory_bytes is not None:
        assert own[0].memory_bytes > 4 * GIB


def test_energy_is_power_over_time() -> None:
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    with DeviceSampler() as sampler, working(lambda: torch.matmul(a, a, out=out)):
        first, power = sampler.read_once().readings[0], []
        for _ in range(12):  # energy is asked every ten seconds
            time.sleep(1.0)
            power.append(sampler.read().readings[0])
        last = sampler.read_once().readings[0]
    if first.energy_j is None or last.energy_j is None:
        pytest.skip("no energy counter")
    watts = [reading.power_w for reading in power if reading.power_w is not None]
    spent_w = (last.energy_j - first.energy_j) / ((last.at_ns - first.at_ns) / 1e9)
    assert spent_w == pytest.approx(sum(watts) / len(watts), rel=0.15)
