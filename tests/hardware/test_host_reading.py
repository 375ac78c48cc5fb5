from __future__ import annotations

from pathlib import Path

import pytest

from nearpeak.hardware import host_reading
from nearpeak.hardware.host_reading import HostReading, HostSampler


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cores, a disk with a partition, a network card, a container limited to one core."""
    write(
        tmp_path,
        proc__stat="cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 50 0 50 350 50 0 0 0\ncpu1 50 0 50 350 50 0 0 0\nintr 1\n",
        proc__loadavg="0.50 0.40 0.30 4/321 999\n",
        proc__meminfo="MemTotal: 1000 kB\nMemAvailable: 600 kB\nCached: 300 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
        proc__diskstats=disks(read=100, written=200),
        proc__self__cgroup="0::/\n",
    )
    write(tmp_path / "proc", net__dev=nets(1000, 2000))
    group = tmp_path / "sys/fs/cgroup"
    write(group, **{"cpu.max": "100000 100000\n", "cpu.stat": "usage_usec 1000000\nthrottled_usec 0\n"})
    write(group, **{"memory.max": "4096\n", "memory.current": "1024\n"})
    clock = iter((10.0, 12.0, 14.0))
    monkeypatch.setattr(host_reading.time, "monotonic", lambda: next(clock))
    return tmp_path


def disks(read: int, written: int) -> str:
    rows = [("8 0 sda", read, written), ("8 1 sda1", read, written), ("7 0 loop0", 9999, 9999)]
    return "".join(f"{name} 1 0 {r} 0 1 0 {w} 0 0 0 0\n" for name, r, w in rows)


def nets(received: int, sent: int) -> str:
    row = "{}: {} 0 0 0 0 0 0 0 {} 0 0 0 0 0 0 0\n"
    return "head\nhead\n" + row.format("lo", 10**9, 10**9) + row.format("  eth0", received, sent)


def test_the_first_reading_has_no_rates(machine: Path) -> None:
    first = HostSampler(machine).read()
    assert first.cpu_percent is None and first.core_percent is None and first.disk_read_bytes_per_s is None
    assert (first.runnable, first.load_1min) == (3, 0.5)
    assert (first.memory_total_bytes, first.memory_available_bytes, first.memory_cached_bytes) == (
        1_024_000,
        614_400,
        307_200,
    )
    assert (first.swap_used_bytes, first.group_memory_bytes, first.group_memory_limit_bytes) == (6144, 1024, 4096)
    assert first.group_cores == 1.0


def test_rates_are_taken_between_two_readings(machine: Path) -> None:
    sampler = HostSampler(machine)
    sampler.read()
    # Two seconds later: core 0 worked all the time, core 1 waited for the disk half of it.
    write(
        machine,
        proc__stat="cpu 300 0 100 800 200 0 0 0\ncpu0 250 0 50 350 50 0 0 0\ncpu1 50 0 50 450 150 0 0 0\n",
        proc__diskstats=disks(read=4100, written=200),
    )
    write(machine / "proc", net__dev=nets(3000, 2000))
    write(machine / "sys/fs/cgroup", **{"cpu.stat": "usage_usec 2500000\nthrottled_usec 400000\n"})
    second = sampler.read()
    assert second.core_percent == (100.0, 0.0) and second.cpu_percent == 50.0
    assert second.busiest_core_percent == 100.0
    assert second.iowait_percent == 25.0
    assert second.disk_read_bytes_per_s == 4000 * 512 / 2 and second.disk_written_bytes_per_s == 0
    assert second.net_received_bytes_per_s == 1000 and second.net_sent_bytes_per_s == 0
    assert second.cpu_share_of_limit_percent == 75.0 and second.throttled_percent == 20.0


def test_cores_that_come_and_go_leave_no_rate(machine: Path) -> None:
    sampler = HostSampler(machine)
    sampler.read()
    write(machine, proc__stat="cpu 300 0 100 800 200 0 0 0\ncpu0 250 0 50 350 50 0 0 0\n")
    assert sampler.read().core_percent is None


def test_cells_come_back() -> None:
    reading = HostReading(at_ns=5, core_percent=(1.0, 2.0), cpu_percent=1.5)
    assert HostReading.from_cells(reading.to_cells()) == reading


def test_this_machine_can_be_read() -> None:
    sampler = HostSampler()
    sampler.read()
    reading = sampler.read()
    assert reading.memory_total_bytes and reading.memory_total_bytes > 1 << 20
