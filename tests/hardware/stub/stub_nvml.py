"""Builds the stub driver, and describes the devices that it plays. Standard library only: benchmarks use it too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("stub_nvml.c")
GIB = 1 << 30
NOT_AVAILABLE = -1
NO_INSTANCE = 0xFFFFFFFF


def has_compiler() -> bool:
    return sys.platform == "linux" and shutil.which("gcc") is not None


def build(folder: Path) -> Path:
    """Compile the stub into `folder`; put that on LD_LIBRARY_PATH."""
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(SOURCE)], check=True)
    return folder


def environment(library: Path, description: Path) -> dict[str, str]:
    """Variables under which the real nvidia-ml-py loads the stub."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "STUB_NVML": str(description)}


@dataclass(slots=True)
class StubDevice:
    """One device as the stub plays it; what is not in `numbers` is not supported."""

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    growing: dict[str, float] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    processes: list[tuple[str, int, int, int, int, int]] = field(default_factory=list)
    """Kind, pid, bytes, GPU instance, compute instance, share."""
    instances: list[StubDevice] = field(default_factory=list)
    hang: tuple[str, Path] | None = None
    """A key that does not return while the file exists."""
    lost: Path | None = None
    xid: Path | None = None

    def lines(self) -> list[str]:
        out = [f"text {key} {value}" for key, value in self.texts.items()]
        out += [f"set {key} {' '.join(f'{n:.17g}' for n in values)}" for key, values in self.numbers.items()]
        out += [f"grow {key} {rate}" for key, rate in self.growing.items()]
        out += [f"error {key} {code}" for key, code in self.errors.items()]
        out += [f"process {' '.join(map(str, process))}" for process in self.processes]
        out += [f"hang {self.hang[0]} {self.hang[1]}"] if self.hang else []
        out += [f"lost {self.lost}"] if self.lost else []
        return out + ([f"xid {self.xid}"] if self.xid else [])


def describe(
    path: Path, devices: list[StubDevice], *, missing: tuple[str, ...] = (), driver: str = "590.48.01"
) -> Path:
    """Write the file that the stub reads."""
    lines = [f"driver {driver}", "cuda 13010", *(f"missing {name}" for name in missing)]
    place = 0
    for device in devices:
        parent = place
        lines += ["device", *device.lines()]
        place += 1
        for position, instance in enumerate(device.instances):
            lines += [f"instance {parent} {position}", *instance.lines()]
            place += 1
    path.write_text("\n".join(lines) + "\n")
    return path


def h100(index: int = 0, *, pids: tuple[int, ...] = ()) -> StubDevice:
    """A Hopper data centre card under load, with everything that one has."""
    held = 61 * GIB
    return StubDevice(
        texts={
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
            "serial": f"16500000000{index:02d}",
            "vbios": "96.00.74.00.01",
            "busid": f"00000000:{0x1A + index:02X}:00.0",
        },
        numbers={
            "pci": (0x233010DE, 0x16C110DE),
            "capability": (9, 0),
            "architecture": (9,),
            "numa": (0,),
            "affinity": (0xFFFF,),
            "utilization": (97, 41),
            "memory": (81559 << 20, 592 << 20, held),
            "bar1": (128 * GIB, 2 << 20),
            "power": (431_123,),
            "energy": (9_876_543_210,),
            "clock0": (1755,),
            "clock1": (1740,),
            "clock2": (2619,),
            "clock3": (1545,),
            "clock_max0": (1980,),
            "clock_max1": (1980,),
            "clock_max2": (2619,),
            "clock_max3": (1545,),
            "clock_app0": (1980,),
            "clock_app2": (2619,),
            "temperature0": (61,),
            "margin": (26,),
            "threshold0": (92,),
            "threshold1": (89,),
            "threshold2": (95,),
            "threshold3": (87,),
            "reasons": (0x4,),
            "pstate": (0,),
            "gen": (5,),
            "width": (16,),
            "gen_max": (5,),
            "gen_device_max": (5,),
            "width_max": (16,),
            "replays": (3,),
            "encoder": (0, 167000),
            "decoder": (1, 167000),
            "jpeg": (0, 167000),
            "ofa": (0, 167000),
            "limit": (700_000,),
            "limit_set": (700_000,),
            "limit_default": (700_000,),
            "limits": (200_000, 700_000),
            "ecc": (1, 1),
            "ecc00": (2,),
            "ecc10": (0,),
            "ecc01": (5,),
            "ecc11": (1,),
            "rows": (1, 0, 0, 0),
            "mig": (0, 0),
            "mig_most": (7,),
            "compute_mode": (0,),
            "persistence": (1,),
            "processes": (1,),
            "shares": (1,),
            "events": (1,),
            **{f"link{link}": (1,) for link in range(18)},
            "fields": (1,),
            "field185": (431_123, 1),
            "field186": (512_500, 1),
            "field82": (55, 1),
            "field74": (12_500_000_000, 3),
            "field76": (0, 3),
            "field269": (0, 3),
            "field270": (1_000_000_000, 3),
            "field271": (0, 3),
            "field138": (1000, 3),
            "field139": (2000, 3),
            "field90": (26562, 1),
            "field38": (0, 3),
            "field45": (1, 3),
            "field52": (2, 3),
            "field59": (0, 3),
            "field230": (0, 1),
            "gpm": (1,),
            "gpm1": (96.4,),
            "gpm2": (88.12,),
            "gpm3": (31.5,),
            "gpm4": (10.25,),
            "gpm5": (47.125,),
            "gpm7": (47.1,),
            "gpm8": (0.0,),
            "gpm9": (0.0,),
            "gpm10": (52.75,),
            "gpm11": (0.0,),
            "gpm12": (6.5,),
            "gpm13": (1.5,),
            "gpm20": (100.5,),
            "gpm21": (2000.25,),
            "gpm60": (40000.0,),
            "gpm61": (41000.0,),
        },
        growing={"energy": 431_123, "field138": 1_000_000, "field139": 2_000_000, "field74": 500_000_000},
        processes=[("compute", pid, held // len(pids), NO_INSTANCE, NO_INSTANCE, 90) for pid in pids],
    )


def h100_cut(index: int = 0, *, pid: int = 0) -> StubDevice:
    """The same card, cut into two MIG instances: what it then no longer says, and what the instances say."""
    card = h100(index)
    card.numbers["mig"] = (1, 1)
    for key in ("utilization", "encoder", "decoder", "jpeg", "ofa", "shares"):
        del card.numbers[key]
    for key in [key for key in card.numbers if key.startswith("link") or key in ("field138", "field139")]:
        del card.numbers[key]
    card.growing = {"energy": 431_123}
    card.numbers |= {"gpm2.1": (71.5,), "gpm5.1": (30.25,), "gpm10.1": (20.5,), "gpm2.2": (0.0,), "gpm5.2": (0.0,)}
    for place, (instance, busy) in enumerate(((1, True), (2, False))):
        used = 18 * GIB if busy else 16 << 20
        card.instances.append(
            StubDevice(
                texts={
                    "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                    "uuid": f"MIG-00000000-0000-0000-000{place}-{index:012d}",
                },
                numbers={
                    "gi": (instance,),
                    "ci": (0,),
                    "attributes": (60, 3, 3, 40448),
                    "memory": (40448 << 20, 0, used),
                    "bar1": (64 * GIB, 0),
                    "processes": (1,),
                },
                processes=[("compute", pid, 18 * GIB, instance, 0, NOT_AVAILABLE)] if busy and pid else [],
            )
        )
    return card


def geforce(index: int = 0, *, pid: int = 0) -> StubDevice:
    """A card for games: no ECC, no links, no performance counters; a desktop and a training run on it."""
    return StubDevice(
        texts={
            "name": "NVIDIA GeForce RTX 4090",
            "uuid": f"GPU-40900000-0000-0000-0000-{index:012d}",
            "vbios": "95.02.3C.00.01",
            "busid": f"00000000:{1 + index:02X}:00.0",
        },
        numbers={
            "pci": (0x268410DE, 0x88E21043),
            "capability": (8, 9),
            "architecture": (8,),
            "utilization": (34, 12),
            "memory": (24564 << 20, 400 << 20, 17_304 << 20),
            "bar1": (256 << 20, 20 << 20),
            "power": (71_060,),
            "energy": (123_456_789,),
            "clock0": (2520,),
            "clock1": (2520,),
            "clock2": (10501,),
            "clock3": (1965,),
            "clock_max0": (3105,),
            "clock_max1": (3105,),
            "clock_max2": (10501,),
            "clock_max3": (2415,),
            "temperature0": (48,),
            "threshold0": (100,),
            "threshold1": (97,),
            "threshold3": (90,),
            "reasons": (0x0,),
            "pstate": (2,),
            "gen": (4,),
            "width": (8,),
            "gen_max": (4,),
            "gen_device_max": (4,),
            "width_max": (16,),
            "replays": (0,),
            "fans": (2,),
            "fan0": (30,),
            "fan1": (33,),
            "fan_rpm": (1240,),
            "encoder": (0, 100000),
            "decoder": (0, 100000),
            "limit": (450_000,),
            "limit_set": (450_000,),
            "limit_default": (450_000,),
            "limits": (10_000, 600_000),
            "compute_mode": (0,),
            "persistence": (0,),
            "processes": (1,),
            "shares": (1,),
            "throughput0": (120_000,),
            "throughput1": (3_500_000,),
            "fields": (1,),
            "field186": (71_060, 1),
            "field74": (0, 3),
        },
        errors={"ecc": 3, "events": 3},
        processes=[
            *([("compute", pid, NOT_AVAILABLE, NO_INSTANCE, NO_INSTANCE, 30)] if pid else []),
            *([("graphics", pid, 900 << 20, NO_INSTANCE, NO_INSTANCE, NOT_AVAILABLE)] if pid else []),
        ],
    )


def silent(index: int = 0) -> StubDevice:
    """A device whose driver says not-supported nearly everywhere, as those of embedded boards do."""
    return StubDevice(
        texts={"name": "NVIDIA Thor", "uuid": f"GPU-70000000-0000-0000-0000-{index:012d}"},
        numbers={"capability": (11, 0), "clock1": (1575,)},
    )


def lying(index: int = 0) -> StubDevice:
    """One that answers `success` and 0 to everything, while it works."""
    zeros = (
        "utilization",
        "memory",
        "power",
        "clock0",
        "clock1",
        "clock2",
        "temperature0",
        "limit",
        "energy",
        "pstate",
    )
    return StubDevice(
        texts={"name": "NVIDIA Thor", "uuid": f"GPU-71000000-0000-0000-0000-{index:012d}"},
        numbers={"capability": (11, 0)} | dict.fromkeys(zeros, (0, 0, 0)),
    )
