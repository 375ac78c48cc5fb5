"""What every tool calls a figure. One line a figure of `Reading`: unit where none is written, then all its names.

Names are normalised: lower case, other signs than letters and digits as `_`, levels parted by points; paths of
`nvidia-smi -q` and `-x` begin below the device, columns of dmon with `dmon.`. Names as in the documentation of
nvidia-smi (man page, `--help-query-gpu`), of its XML schemas v4 to v13, of DCGM's field identifiers, and of rocm-smi.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from nearpeak.hardware.metric_names import NATIVE

__all__ = ["DEVICE_NAMES", "REASON_NAMES", "SUM_NAMES", "Place", "normalised", "place_of", "reason_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a field of a log belongs."""

    figure: str
    unit: str | None = None
    """Where the log writes none."""
    scale: float = 1.0
    """Upon the SI value: 100 for shares given as 0 to 1."""


_FIGURES: dict[str, tuple[str | None, str]] = {
    "busy_percent": (
        "%",
        "utilization.gpu utilization.gpu_util dmon.sm dcgm_fi_dev_gpu_util gpu_use gfx_activity usage.gfx_activity",
    ),
    "memory_busy_percent": (
        "%",
        "utilization.memory utilization.memory_util dmon.mem dcgm_fi_dev_mem_copy_util gpu_memory_activity "
        "gpu_memory_read_write_activity usage.umc_activity",
    ),
    "encoder_percent": ("%", "utilization.encoder utilization.encoder_util dmon.enc dcgm_fi_dev_enc_util"),
    "decoder_percent": ("%", "utilization.decoder utilization.decoder_util dmon.dec dcgm_fi_dev_dec_util"),
    "jpeg_percent": ("%", "utilization.jpeg utilization.jpeg_util dmon.jpg"),
    "optical_flow_percent": ("%", "utilization.ofa utilization.ofa_util dmon.ofa"),
    "engine_percent": ("%", "dmon.gract dmon.gfxutil"),
    "sm_busy_percent": ("%", "dmon.smutil dmon.smact"),
    "sm_occupancy_percent": ("%", "dmon.smocc"),
    "tensor_percent": ("%", "dmon.anytns dmon.tensor dmon.tenso"),
    "dram_percent": ("%", "dmon.dramutil dmon.drama"),
    "memory_total_bytes": (
        "MiB",
        "memory.total fb_memory_usage.total shared_fb_memory_usage.total memory_usage.total dcgm_fi_dev_fb_total "
        "vram_total_memory gpu_memory_vram_total mem_usage.total_vram",
    ),
    "memory_used_bytes": (
        "MiB",
        "memory.used fb_memory_usage.used shared_fb_memory_usage.used memory_usage.used dmon.fb dcgm_fi_dev_fb_used "
        "vram_total_used_memory mem_usage.used_vram",
    ),
    "memory_free_bytes": (
        "MiB",
        "memory.free fb_memory_usage.free shared_fb_memory_usage.free memory_usage.free dcgm_fi_dev_fb_free "
        "mem_usage.free_vram",
    ),
    "memory_reserved_bytes": (
        "MiB",
        "memory.reserved fb_memory_usage.reserved shared_fb_memory_usage.reserved dcgm_fi_dev_fb_reserved",
    ),
    "bar1_total_bytes": ("MiB", "bar1_memory_usage.total shared_bar1_memory.total dcgm_fi_dev_bar1_total"),
    "bar1_used_bytes": ("MiB", "bar1_memory_usage.used shared_bar1_memory.used dmon.bar1 dcgm_fi_dev_bar1_used"),
    "power_w": (
        "W",
        "power.draw power_readings.power_draw gpu_power_readings.power_draw dmon.pwr dcgm_fi_dev_power_usage "
        "average_graphics_package_power current_socket_graphics_package_power power.socket_power",
    ),
    "power_average_w": (
        "W",
        "power.draw.average gpu_power_readings.average_power_draw power_readings.average_power_draw",
    ),
    "power_instant_w": (
        "W",
        "power.draw.instant gpu_power_readings.instantaneous_power_draw gpu_power_readings.instant_power_draw "
        "dcgm_fi_dev_power_usage_instant",
    ),
    "power_limit_w": (
        "W",
        "enforced.power.limit power_readings.enforced_power_limit gpu_power_readings.current_power_limit "
        "dcgm_fi_dev_enforced_power_limit max_graphics_package_power",
    ),
    "power_limit_set_w": (
        "W",
        "power.limit power_readings.power_limit gpu_power_readings.requested_power_limit dcgm_fi_dev_power_mgmt_limit",
    ),
    "power_limit_default_w": (
        "W",
        "power.default_limit power_readings.default_power_limit gpu_power_readings.default_power_limit "
        "dcgm_fi_dev_power_mgmt_limit_def",
    ),
    "power_limit_min_w": (
        "W",
        "power.min_limit power_readings.min_power_limit gpu_power_readings.min_power_limit "
        "dcgm_fi_dev_power_mgmt_limit_min",
    ),
    "power_limit_max_w": (
        "W",
        "power.max_limit power_readings.max_power_limit gpu_power_readings.max_power_limit "
        "dcgm_fi_dev_power_mgmt_limit_max",
    ),
    "module_power_w": (
        "W",
        "module.power.draw.average module_power_readings.average_power_draw module_power_readings.power_draw",
    ),
    "module_power_limit_w": ("W", "module.enforced.power.limit module_power_readings.current_power_limit"),
    "memory_power_w": ("W", "gpu_memory_power_readings.average_power_draw"),
    "energy_j": ("mJ", "total_energy_consumption dcgm_fi_dev_total_energy_consumption"),
    "clock_hz": ("MHz", "clocks.current.sm clocks.sm clocks.sm_clock dmon.pclk dcgm_fi_dev_sm_clock"),
    "clock_max_hz": ("MHz", "clocks.max.sm max_clocks.sm max_clocks.sm_clock dcgm_fi_dev_max_sm_clock"),
    "clock_graphics_hz": (
        "MHz",
        "clocks.current.graphics clocks.gr clocks.graphics clocks.graphics_clock sclk_clock_speed",
    ),
    "clock_graphics_max_hz": ("MHz", "clocks.max.graphics clocks.max.gr max_clocks.graphics max_clocks.graphics_clock"),
    "clock_memory_hz": (
        "MHz",
        "clocks.current.memory clocks.mem clocks.memory clocks.mem_clock dmon.mclk dcgm_fi_dev_mem_clock "
        "mclk_clock_speed",
    ),
    "clock_memory_max_hz": (
        "MHz",
        "clocks.max.memory clocks.max.mem max_clocks.memory max_clocks.mem_clock dcgm_fi_dev_max_mem_clock",
    ),
    "clock_video_hz": ("MHz", "clocks.current.video clocks.video clocks.video_clock dcgm_fi_dev_video_clock"),
    "clock_video_max_hz": ("MHz", "clocks.max.video max_clocks.video max_clocks.video_clock"),
    "clock_application_hz": (
        "MHz",
        "clocks.applications.graphics clocks.applications.gr applications_clocks.graphics "
        "applications_clocks.graphics_clock dcgm_fi_dev_app_sm_clock",
    ),
    "clock_application_memory_hz": (
        "MHz",
        "clocks.applications.memory clocks.applications.mem applications_clocks.memory applications_clocks.mem_clock "
        "dcgm_fi_dev_app_mem_clock",
    ),
    "performance_state": (None, "pstate performance_state dcgm_fi_dev_pstate"),
    "temperature_c": (
        "C",
        "temperature.gpu temperature.gpu_temp temperature.gpu_current_temp temperature.gpu dmon.gtemp dmon.temp "
        "dcgm_fi_dev_gpu_temp temperature_sensor_junction temperature.hotspot",
    ),
    "temperature_memory_c": (
        "C",
        "temperature.memory temperature.memory_temp temperature.memory_current_temp dmon.mtemp dcgm_fi_dev_memory_temp "
        "temperature_sensor_memory temperature.mem",
    ),
    "temperature_margin_c": (
        "C",
        "temperature.gpu.tlimit temperature.gpu_temp_tlimit temperature.gpu_t_limit_temp dcgm_fi_dev_gpu_temp_limit",
    ),
    "temperature_slowdown_c": (
        "C",
        "temperature.gpu_temp_slow_threshold temperature.gpu_slowdown_temp dcgm_fi_dev_slowdown_temp",
    ),
    "temperature_shutdown_c": (
        "C",
        "temperature.gpu_temp_max_threshold temperature.gpu_shutdown_temp dcgm_fi_dev_shutdown_temp",
    ),
    "temperature_target_c": ("C", "temperature.gpu_target_temperature"),
    "temperature_memory_max_c": (
        "C",
        "temperature.gpu_temp_max_mem_threshold temperature.memory_max_operating_temp dcgm_fi_dev_mem_max_op_temp",
    ),
    "fan_percent": ("%", "fan.speed fan_speed dcgm_fi_dev_fan_speed"),
    "fan_rpm": ("rpm", "fan_rpm"),
    "throttled_power_s": (
        "us",
        "clocks_event_reasons_counters.sw_power_cap clocks_event_reasons_counters.sw_power_capping",
    ),
    "throttled_thermal_s": (
        "us",
        "clocks_event_reasons_counters.sw_thermal_slowdown clocks_event_reasons_counters.sw_therm_slowdown",
    ),
    "throttled_hardware_thermal_s": (
        "us",
        "clocks_event_reasons_counters.hw_thermal_slowdown clocks_event_reasons_counters.hw_therm_slowdown",
    ),
    "throttled_power_brake_s": (
        "us",
        "clocks_event_reasons_counters.hw_power_brake_slowdown clocks_event_reasons_counters.hw_power_braking "
        "clocks_event_reasons_counters.hw_power_brake",
    ),
    "throttled_sync_boost_s": ("us", "clocks_event_reasons_counters.sync_boost"),
    "pcie_generation": (
        None,
        "pcie.link.gen.current pci.gpu_link_info.pcie_generation.current "
        "pci.pci_gpu_link_info.pcie_gen.current_link_gen dcgm_fi_dev_pcie_link_gen",
    ),
    "pcie_generation_max": (
        None,
        "pcie.link.gen.max pci.gpu_link_info.pcie_generation.max pci.pci_gpu_link_info.pcie_gen.max_link_gen "
        "dcgm_fi_dev_pcie_max_link_gen",
    ),
    "pcie_generation_device_max": (
        None,
        "pcie.link.gen.gpumax pci.gpu_link_info.pcie_generation.device_max "
        "pci.pci_gpu_link_info.pcie_gen.max_device_link_gen",
    ),
    "pcie_width": (
        "x",
        "pcie.link.width.current pci.gpu_link_info.link_width.current "
        "pci.pci_gpu_link_info.link_widths.current_link_width dcgm_fi_dev_pcie_link_width",
    ),
    "pcie_width_max": (
        "x",
        "pcie.link.width.max pci.gpu_link_info.link_width.max pci.pci_gpu_link_info.link_widths.max_link_width "
        "dcgm_fi_dev_pcie_max_link_width",
    ),
    "pcie_sent_bytes_per_s": ("KB/s", "pci.tx_util pci.tx_throughput dcgm_fi_dev_pcie_tx_throughput"),
    "pcie_received_bytes_per_s": ("KB/s", "pci.rx_util pci.rx_throughput dcgm_fi_dev_pcie_rx_throughput"),
    "pcie_replays": (
        None,
        "pci.replay_counter pci.replays_since_reset dmon.pci dcgm_fi_dev_pcie_replay_counter pcie_replay_count",
    ),
    "nvlink_links_max": (None, "nvlink.links"),
    "nvlink_link_bytes_per_s": ("GB/s", "nvlink.link_speed"),
    "ecc_enabled": (None, "ecc.mode.current ecc_mode.current ecc_mode.current_ecc"),
    "ecc_corrected": (
        None,
        "ecc.errors.corrected.volatile.total ecc_errors.volatile.single_bit.total dmon.sbecc "
        "dcgm_fi_dev_ecc_sbe_vol_total",
    ),
    "ecc_uncorrected": (
        None,
        "ecc.errors.uncorrected.volatile.total ecc_errors.volatile.double_bit.total dmon.dbecc "
        "dcgm_fi_dev_ecc_dbe_vol_total table.ecc_uncorrected",
    ),
    "ecc_corrected_lifetime": (
        None,
        "ecc.errors.corrected.aggregate.total ecc_errors.aggregate.single_bit.total dcgm_fi_dev_ecc_sbe_agg_total",
    ),
    "ecc_uncorrected_lifetime": (
        None,
        "ecc.errors.uncorrected.aggregate.total ecc_errors.aggregate.double_bit.total dcgm_fi_dev_ecc_dbe_agg_total",
    ),
    "rows_remapped_corrected": (
        None,
        "remapped_rows.correctable remapped_rows.correctable_error remapped_rows.remapped_row_corr "
        "dcgm_fi_dev_correctable_remapped_rows",
    ),
    "rows_remapped_uncorrected": (
        None,
        "remapped_rows.uncorrectable remapped_rows.uncorrectable_error remapped_rows.remapped_row_unc "
        "dcgm_fi_dev_uncorrectable_remapped_rows",
    ),
    "row_remap_pending": (
        None,
        "remapped_rows.pending remapped_rows.remapped_row_pending dcgm_fi_dev_row_remap_pending",
    ),
    "row_remap_failed": (
        None,
        "remapped_rows.failure remapped_rows.remapping_failure_occurred remapped_rows.remapped_row_failure "
        "dcgm_fi_dev_row_remap_failure",
    ),
    "page_retirement_pending": (
        None,
        "retired_pages.pending retired_pages.pending_page_blacklist retired_pages.pending_retirement "
        "retired_pages.pending_blacklist dcgm_fi_dev_retired_pending",
    ),
    "xid": (None, "dcgm_fi_dev_xid_errors"),
    "compute_mode": (None, "compute_mode"),
    "persistence": (None, "persistence_mode"),
    "mig_enabled": (None, "mig.mode.current mig_mode.current mig_mode.current_mig"),
    "reset_needed": (None, "gpu_recovery_action gpu_reset_status.reset_required reset_status.reset_required"),
}

_RATIOS: dict[str, str] = {
    # DCGM's profiling fields are given as 0 to 1.
    "dcgm_fi_prof_gr_engine_active": "engine_percent",
    "dcgm_fi_prof_sm_active": "sm_busy_percent",
    "dcgm_fi_prof_sm_occupancy": "sm_occupancy_percent",
    "dcgm_fi_prof_pipe_tensor_active": "tensor_percent",
    "dcgm_fi_prof_dram_active": "dram_percent",
    "dcgm_fi_prof_pipe_fp64_active": "fp64_percent",
    "dcgm_fi_prof_pipe_fp32_active": "fp32_percent",
    "dcgm_fi_prof_pipe_fp16_active": "fp16_percent",
    "dcgm_fi_prof_pipe_int_active": "integer_percent",
    "nvidia_smi_utilization_gpu_ratio": "busy_percent",
    "nvidia_smi_utilization_memory_ratio": "memory_busy_percent",
    "nvidia_smi_fan_speed_ratio": "fan_percent",
}
_PLAIN: dict[str, tuple[str, str | None]] = {
    "dmon.rxpci": ("pcie_received_bytes_per_s", "MB/s"),
    "dmon.txpci": ("pcie_sent_bytes_per_s", "MB/s"),
    "dcgm_fi_prof_pcie_tx_bytes": ("pcie_sent_bytes_per_s", "B/s"),
    "dcgm_fi_prof_pcie_rx_bytes": ("pcie_received_bytes_per_s", "B/s"),
    "dcgm_fi_prof_nvlink_tx_bytes": ("nvlink_sent_bytes_per_s", "B/s"),
    "dcgm_fi_prof_nvlink_rx_bytes": ("nvlink_received_bytes_per_s", "B/s"),
    "nvidia_smi_memory_used_bytes": ("memory_used_bytes", "B"),
    "nvidia_smi_memory_total_bytes": ("memory_total_bytes", "B"),
    "nvidia_smi_memory_free_bytes": ("memory_free_bytes", "B"),
    "nvidia_smi_power_draw_watts": ("power_w", "W"),
    "nvidia_smi_enforced_power_limit_watts": ("power_limit_w", "W"),
    "nvidia_smi_power_limit_watts": ("power_limit_set_w", "W"),
    "nvidia_smi_temperature_gpu": ("temperature_c", "C"),
    "nvidia_smi_clocks_current_sm_clock_hz": ("clock_hz", "Hz"),
    "nvidia_smi_clocks_max_sm_clock_hz": ("clock_max_hz", "Hz"),
    "nvidia_smi_clocks_current_memory_clock_hz": ("clock_memory_hz", "Hz"),
    "nvidia_smi_pstate": ("performance_state", None),
    "nvidia_smi_pcie_link_gen_current": ("pcie_generation", None),
    "nvidia_smi_pcie_link_gen_max": ("pcie_generation_max", None),
    "nvidia_smi_pcie_link_width_current": ("pcie_width", "x"),
    "nvidia_smi_pcie_link_width_max": ("pcie_width_max", "x"),
}

DEVICE_NAMES: dict[str, str] = {
    "name": "name",
    "gpu_name": "name",
    "product_name": "name",
    "modelname": "name",
    "card_series": "name",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "pci.bus_id": "pci_bus_id",
    "gpu_bus_id": "pci_bus_id",
    "pci.pci_bus_id": "pci_bus_id",
    "pci_bus": "pci_bus_id",
    "pci.device_id": "pci_id",
    "pci.pci_device_id": "pci_id",
    "pci.sub_device_id": "pci_subsystem_id",
    "pci.sub_system_id": "pci_subsystem_id",
    "pci.pci_sub_system_id": "pci_subsystem_id",
    "serial": "serial",
    "gpu_serial": "serial",
    "serial_number": "serial",
    "compute_cap": "compute_capability",
    "product_architecture": "architecture",
    "driver_version": "driver_version",
    "cuda_version": "cuda_version",
    "vbios_version": "vbios_version",
    "device_attributes.shared.multiprocessor_count": "multiprocessors",
    "gpu_instance_id": "gpu_instance",
    "compute_instance_id": "compute_instance",
}
"""Name in a log → field of `Device`."""

_REASONS: dict[str, str] = {
    "gpu_idle": "idle",
    "idle": "idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hardware_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "hardware_thermal",
    "hw_power_brake_slowdown": "power_brake",
    "display_clock_setting": "display_clocks",
    "display_clocks_setting": "display_clocks",
}
REASON_NAMES = frozenset(_REASONS.values())
MASK_NAMES = frozenset(
    {
        "clocks_event_reasons.active",
        "clocks_throttle_reasons.active",
        "dcgm_fi_dev_clock_throttle_reasons",
        "dcgm_fi_dev_clocks_event_reasons",
        "nvidia_smi_clocks_event_reasons_active",
    }
)
"""Fields that give all reasons as one mask."""

SUM_NAMES: dict[str, tuple[str, ...]] = {
    # Where a log gives parts and no total.
    "ecc_corrected": (
        "ecc_errors.volatile.sram_correctable",
        "ecc_errors.volatile.dram_correctable",
        "ecc.errors.corrected.volatile.sram",
        "ecc.errors.corrected.volatile.dram",
    ),
    "ecc_uncorrected": (
        "ecc_errors.volatile.sram_uncorrectable",
        "ecc_errors.volatile.sram_uncorrectable_parity",
        "ecc_errors.volatile.sram_uncorrectable_secded",
        "ecc_errors.volatile.sram_uncorrectable_sec_ded",
        "ecc_errors.volatile.dram_uncorrectable",
        "ecc.errors.uncorrected.volatile.sram",
        "ecc.errors.uncorrected.volatile.dram",
        "ecc_error_count.volatile_count.sram_uncorrectable",
    ),
    "ecc_corrected_lifetime": (
        "ecc_errors.aggregate.sram_correctable",
        "ecc_errors.aggregate.dram_correctable",
        "ecc.errors.corrected.aggregate.sram",
        "ecc.errors.corrected.aggregate.dram",
    ),
    "ecc_uncorrected_lifetime": (
        "ecc_errors.aggregate.sram_uncorrectable",
        "ecc_errors.aggregate.sram_uncorrectable_parity",
        "ecc_errors.aggregate.sram_uncorrectable_secded",
        "ecc_errors.aggregate.sram_uncorrectable_sec_ded",
        "ecc_errors.aggregate.dram_uncorrectable",
        "ecc.errors.uncorrected.aggregate.sram",
        "ecc.errors.uncorrected.aggregate.dram",
    ),
    "pages_retired": (
        "retired_pages.single_bit_ecc.count",
        "retired_pages.double_bit.count",
        "retired_pages.sbe",
        "retired_pages.dbe",
        "retired_pages.single_bit_ecc",
        "retired_pages.double_bit_ecc",
        "retired_pages.multiple_single_bit_retirement.retired_count",
        "retired_pages.double_bit_retirement.retired_count",
        "dcgm_fi_dev_retired_sbe",
        "dcgm_fi_dev_retired_dbe",
    ),
}
PART_NAMES: dict[str, str] = {part: figure for figure, parts in SUM_NAMES.items() for part in parts}

_PLACES: dict[str, Place] = {
    **{name: Place(figure, unit) for figure, (unit, names) in _FIGURES.items() for name in names.split()},
    **{name: Place(figure, None, 100.0) for name, figure in _RATIOS.items()},
    **{name: Place(figure, unit) for name, (figure, unit) in _PLAIN.items()},
    **{
        name: Place(each.figure, None, 1 / each.factor) for each in NATIVE for name in (each.name, f"{each.name}_total")
    },
}
_REASON_GROUP = re.compile(r"^clocks?_(?:event|throttle)_reasons?\.(?:hw_slowdown\.)?(?:clocks_\w+?_reason_)?(\w+)$")
_COUNTER_GROUP = re.compile(r"^clocks_(?:event|throttle)_reasons_counters\.(?:clocks_\w+?_reasons_counters_)?(\w+)$")
_UNLIKE = re.compile(r"[^a-z0-9.]+")


@lru_cache(maxsize=8192)
def normalised(name: str) -> str:
    """`GPU Link Info` → `gpu_link_info`; `GPU use (%)` → `gpu_use`."""
    parts = (_UNLIKE.sub("_", part).strip("_") for part in name.strip().lower().split("."))
    return ".".join(part for part in parts if part)


@lru_cache(maxsize=8192)
def place_of(name: str) -> Place | None:
    """Where a field with this normalised name belongs; None if no figure holds it."""
    counter = _COUNTER_GROUP.match(name)
    return _PLACES.get(f"clocks_event_reasons_counters.{counter[1]}" if counter else name)


@lru_cache(maxsize=8192)
def reason_of(name: str) -> str | None:
    """The throttle reason of which this field says whether it is active."""
    match = _REASON_GROUP.match(name)
    return _REASONS.get(match[1]) if match else None
