"""The table of known GPUs, `gpus.csv`: one line a model, keyed by the exact name of the driver and by PCI ids.

A figure stands in it only where a source that was read has it, or arithmetic on such figures; others are left empty.
Names are never matched in part: an L40S is no L4, an A10G no A10. Where models share a name, the PCI id or the size of
their memory tells them apart; where nothing does, the answer is that it is not known.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources

from nearpeak.errors import DataError
from nearpeak.hardware.gpu import Gpu
from nearpeak.hardware.reading import Device

__all__ = ["find_gpu", "gpu_of", "known_gpus"]

GIB, MIB, GB, TERA = 1 << 30, 1 << 20, 1e9, 1e12
COLUMNS: dict[str, tuple[str, float]] = {
    "memory_gib": ("memory_bytes", GIB),
    "memory_gb_per_s": ("memory_bytes_per_s", GB),
    "fp64_tflops": ("fp64_flops", TERA),
    "fp32_tflops": ("fp32_flops", TERA),
    "tf32_tflops": ("tf32_flops", TERA),
    "bf16_tflops": ("bf16_flops", TERA),
    "fp16_tflops": ("fp16_flops", TERA),
    "fp8_tflops": ("fp8_flops", TERA),
    "link_gb_per_s": ("link_bytes_per_s", GB),
    "max_power_w": ("max_power_w", 1),
    "multiprocessors": ("multiprocessors", 1),
    "l2_mib": ("l2_bytes", MIB),
    "pcie_generation": ("pcie_generation", 1),
    "pcie_lanes": ("pcie_lanes", 1),
}
"""Column of the table → figure of a `Gpu`, and what one of the column is."""
WHOLE = frozenset({"memory_bytes", "multiprocessors", "l2_bytes", "pcie_generation", "pcie_lanes"})
COMPUTED = "computed: multiprocessors × operations per clock × boost clock; "
ALIKE = 0.08
"""Drivers report a little less memory than a card has: what firmware keeps."""


@cache
def known_gpus() -> tuple[Gpu, ...]:
    """Every model of the table."""
    sources = {row["key"]: row["source"] for row in _rows("gpu_sources.csv")}
    return tuple(_gpu(row, sources) for row in _rows("gpus.csv"))


def find_gpu(name: str | None, pci_id: str | None = None, memory_bytes: int | None = None) -> Gpu | None:
    """The model of this exact name, or else of this PCI id; None where the table has none, or several fit."""
    named = _by_name().get(name, ()) if name else ()
    if len(named) > 1:
        by_id = [gpu for gpu in named if pci_id is not None and pci_id.lower() in gpu.pci_ids]
        named = tuple(by_id) or tuple(gpu for gpu in named if _has_memory(gpu, memory_bytes))
    if len(named) == 1:
        return named[0]
    if named or pci_id is None:
        return None
    # A driver's name for a variant that we do not know, of a device that we do: the id decides.
    return next((gpu for gpu in known_gpus() if pci_id.lower() in gpu.pci_ids and not name), None)


def gpu_of(device: Device, memory_bytes: int | None = None) -> Gpu | None:
    """The model of a device. A MIG instance is a part of one, and has none."""
    return None if device.mig is not None else find_gpu(device.name, device.pci_id, memory_bytes)


def _has_memory(gpu: Gpu, memory_bytes: int | None) -> bool:
    if memory_bytes is None or gpu.memory_bytes is None:
        return False
    return abs(memory_bytes - gpu.memory_bytes) <= ALIKE * gpu.memory_bytes


@cache
def _by_name() -> dict[str, tuple[Gpu, ...]]:
    """Drivers before 470 leave the maker's name out."""
    found: dict[str, tuple[Gpu, ...]] = {}
    for gpu, row in zip(known_gpus(), _rows("gpus.csv"), strict=True):
        names = {gpu.name, gpu.name.removeprefix("NVIDIA ") if "GeForce" in gpu.name else gpu.name}
        for name in names | set(filter(None, row["also"].split(";"))):
            found[name] = (*found.get(name, ()), gpu)
    return found


@cache
def _rows(file: str) -> tuple[dict[str, str], ...]:
    text = resources.files("nearpeak.hardware").joinpath(file).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _gpu(row: dict[str, str], sources: dict[str, str]) -> Gpu:
    figures = {figure: _number(row[column], unit, figure) for column, (figure, unit) in COLUMNS.items() if row[column]}
    major, _, minor = row["compute_capability"].partition(".")
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        pci_ids=tuple(row["pci_ids"].split()),
        compute_capability=(int(major), int(minor)) if major else None,
        sources={COLUMNS[column][0]: _source(row, column, sources) for column in COLUMNS if row[column]},
        **figures,  # type: ignore[arg-type]
    )


def _source(row: dict[str, str], column: str, sources: dict[str, str]) -> str:
    """Where a figure was read: the line's source, but for those of `other_sources`."""
    others = dict(pair.split(":") for pair in row["other_sources"].split())
    key = others.get(column, row["source"])
    if key not in sources:
        raise DataError(f"gpus.csv: {row['name']}: {column}: source {key!r} is not in gpu_sources.csv.")
    return (COMPUTED if column in row["computed"].split() else "") + sources[key]


def _number(text: str, unit: float, figure: str) -> float | int:
    value = float(text) * unit
    return round(value) if figure in WHOLE else value
