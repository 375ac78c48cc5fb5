from __future__ import annotations

from pathlib import Path

import pytest

from nearpeak.hardware.host import read_cgroup_cores, read_cgroup_memory, read_cpu, read_host, read_pci_vendors


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores", "memory_bytes"),
    [
        ({}, None, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "1073741824\n",
            },
            1.5,
            1 << 30,
        ),
        # A container sees the host's path in /proc and its own group as the root.
        ({"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0, None),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2048",
            },
            3.0,
            2048,
        ),
    ],
    ids=["nothing", "unlimited", "least on the way up", "inside a container", "version 1"],
)
def test_container_limits(tmp_path: Path, files: dict[str, str], cores: float | None, memory_bytes: int | None) -> None:
    root = write(tmp_path, files)
    assert (read_cgroup_cores(root), read_cgroup_memory(root)) == (cores, memory_bytes)


def test_cpu_flags_are_whole_words(tmp_path: Path) -> None:
    text = "model name\t: Some CPU\nflags\t\t: fpu avx512_bf16x avx2 amx_bf16\n\nmodel name\t: Other\n"
    assert read_cpu(write(tmp_path, {"proc/cpuinfo": text})) == ("Some CPU", ("avx2", "amx_bf16"))


def test_arm_says_features(tmp_path: Path) -> None:
    assert read_cpu(write(tmp_path, {"proc/cpuinfo": "Features : fp asimd bf16\n"})) == (None, ("bf16",))


def test_unknown_flags_are_none(tmp_path: Path) -> None:
    assert read_cpu(tmp_path)[1] is None


def test_devices_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    assert read_pci_vendors(tmp_path) is None
    files = {
        "sys/bus/pci/devices/0000:00:01.0/class": "0x060000",
        "sys/bus/pci/devices/0000:00:01.0/vendor": "0x8086",
        "sys/bus/pci/devices/0000:00:04.0/class": "0x030200",
        "sys/bus/pci/devices/0000:00:04.0/vendor": "0x10de",
        "sys/bus/pci/devices/0000:00:05.0/class": "0x120000",
        "sys/bus/pci/devices/0000:00:05.0/vendor": "0x1da3",
    }
    assert read_pci_vendors(write(tmp_path, files)) == ("nvidia", "0x1da3")


def test_this_machine() -> None:
    host = read_host()
    assert host.memory_bytes is not None
    assert host.memory_bytes > 1 << 20
    assert host.effective_cores is not None
    assert host.effective_cores > 0


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert host.shared_memory_bytes is None
    assert host.cgroup_cores is None
    assert host.pci_vendors is None
    assert host.has_native_bf16 is None
