"""What metrics call each figure, given by the exporter and read back from exports: our names, and DCGM's."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.hardware.reading import FIGURES

__all__ = ["DCGM", "NATIVE", "DcgmName", "NativeName"]

PREFIX = "nearpeak_gpu_"
_UNITS = (
    # Ending of a figure → ending of its metric, factor: Prometheus wants base units, and ratios instead of percent.
    ("_bytes_per_s", "_bytes_per_second", 1.0),
    ("_percent", "_ratio", 0.01),
    ("_bytes", "_bytes", 1.0),
    ("_w", "_watts", 1.0),
    ("_j", "_joules", 1.0),
    ("_hz", "_hertz", 1.0),
    ("_c", "_celsius", 1.0),
    ("_s", "_seconds", 1.0),
)
_NO_NUMBER = {"throttle_reasons", "compute_mode"}
"""Told as labels."""


@dataclass(frozen=True, slots=True)
class NativeName:
    """One metric of our own."""

    name: str
    """Without the `_total` that a counter gets."""
    figure: str
    factor: float
    counter: bool
    help: str


@dataclass(frozen=True, slots=True)
class DcgmName:
    """One of DCGM's field identifiers and what it takes to get its unit from ours."""

    name: str
    figure: str
    factor: float
    unit: str


def _native(figure: str) -> NativeName:
    about = FIGURES[figure]
    stem, factor = figure, 1.0
    for ending, unit, times in _UNITS:
        if figure.endswith(ending):
            stem, factor = figure.removesuffix(ending) + unit, times
            break
    return NativeName(PREFIX + stem, figure, factor, about.kind == "counter", about.meaning.capitalize() + ".")


NATIVE: tuple[NativeName, ...] = tuple(_native(figure) for figure in FIGURES if figure not in _NO_NUMBER)

_MIB = 1 / 2**20
DCGM: tuple[DcgmName, ...] = tuple(
    DcgmName(f"DCGM_FI_{name}", figure, factor, unit)
    for name, figure, factor, unit in (
        ("DEV_GPU_UTIL", "busy_percent", 1.0, "%"),
        ("DEV_MEM_COPY_UTIL", "memory_busy_percent", 1.0, "%"),
        ("DEV_ENC_UTIL", "encoder_percent", 1.0, "%"),
        ("DEV_DEC_UTIL", "decoder_percent", 1.0, "%"),
        ("DEV_FB_TOTAL", "memory_total_bytes", _MIB, "MiB"),
        ("DEV_FB_USED", "memory_used_bytes", _MIB, "MiB"),
        ("DEV_FB_FREE", "memory_free_bytes", _MIB, "MiB"),
        ("DEV_FB_RESERVED", "memory_reserved_bytes", _MIB, "MiB"),
        ("DEV_POWER_USAGE", "power_w", 1.0, "W"),
        ("DEV_POWER_USAGE_INSTANT", "power_instant_w", 1.0, "W"),
        ("DEV_ENFORCED_POWER_LIMIT", "power_limit_w", 1.0, "W"),
        ("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_j", 1e3, "mJ"),
        ("DEV_SM_CLOCK", "clock_hz", 1e-6, "MHz"),
        ("DEV_MEM_CLOCK", "clock_memory_hz", 1e-6, "MHz"),
        ("DEV_VIDEO_CLOCK", "clock_video_hz", 1e-6, "MHz"),
        ("DEV_GPU_TEMP", "temperature_c", 1.0, "C"),
        ("DEV_MEMORY_TEMP", "temperature_memory_c", 1.0, "C"),
        ("DEV_FAN_SPEED", "fan_percent", 1.0, "%"),
        ("DEV_PSTATE", "performance_state", 1.0, ""),
        ("DEV_XID_ERRORS", "xid", 1.0, ""),
        ("DEV_PCIE_LINK_GEN", "pcie_generation", 1.0, ""),
        ("DEV_PCIE_LINK_WIDTH", "pcie_width", 1.0, ""),
        ("DEV_PCIE_REPLAY_COUNTER", "pcie_replays", 1.0, ""),
        ("DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected", 1.0, ""),
        ("DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected", 1.0, ""),
        ("DEV_ECC_SBE_AGG_TOTAL", "ecc_corrected_lifetime", 1.0, ""),
        ("DEV_ECC_DBE_AGG_TOTAL", "ecc_uncorrected_lifetime", 1.0, ""),
        ("DEV_CORRECTABLE_REMAPPED_ROWS", "rows_remapped_corrected", 1.0, ""),
        ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows_remapped_uncorrected", 1.0, ""),
        ("DEV_ROW_REMAP_FAILURE", "row_remap_failed", 1.0, ""),
        ("PROF_GR_ENGINE_ACTIVE", "engine_percent", 0.01, "0 to 1"),
        ("PROF_SM_ACTIVE", "sm_busy_percent", 0.01, "0 to 1"),
        ("PROF_SM_OCCUPANCY", "sm_occupancy_percent", 0.01, "0 to 1"),
        ("PROF_PIPE_TENSOR_ACTIVE", "tensor_percent", 0.01, "0 to 1"),
        ("PROF_DRAM_ACTIVE", "dram_percent", 0.01, "0 to 1"),
        ("PROF_PIPE_FP64_ACTIVE", "fp64_percent", 0.01, "0 to 1"),
        ("PROF_PIPE_FP32_ACTIVE", "fp32_percent", 0.01, "0 to 1"),
        ("PROF_PIPE_FP16_ACTIVE", "fp16_percent", 0.01, "0 to 1"),
        ("PROF_PCIE_TX_BYTES", "pcie_sent_bytes_per_s", 1.0, "bytes/s"),
        ("PROF_PCIE_RX_BYTES", "pcie_received_bytes_per_s", 1.0, "bytes/s"),
        ("PROF_NVLINK_TX_BYTES", "nvlink_sent_bytes_per_s", 1.0, "bytes/s"),
        ("PROF_NVLINK_RX_BYTES", "nvlink_received_bytes_per_s", 1.0, "bytes/s"),
    )
)
