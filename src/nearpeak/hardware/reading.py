"""`Reading`: what one device says at one moment. Every figure is a value, or None and a reason why.

A live driver and a log kept by somebody else fill the same type, and findings read it. Units are SI and stand in the
names: bytes, watts, hertz, seconds, degrees Celsius; shares are percent, as drivers give them. A counter counts from
some moment before the first reading: only differences of it mean something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from nearpeak.errors import SettingError

__all__ = ["FIGURES", "THROTTLE_REASONS", "WHYS", "Device", "Figure", "ProcessUse", "Reading", "ThrottleReason", "Why"]

Why = Literal["unsupported", "no_permission", "not_yet", "not_asked", "lost", "timeout", "implausible", "error"]
"""Why a figure is None: the device, driver or library has no such figure; it may not be read by this user; it needs a
second sample, or is read rarely and its turn has not come; nobody asked (as in a log without that column); the device
is off the bus; the driver does not answer; the driver says 0 and other evidence contradicts it; any other refusal."""
WHYS: tuple[Why, ...] = get_args(Why)

State = Literal["ok", "lost", "hung", "failed"]
"""Of a device: it answers; it fell off the bus; a call to its driver does not return; it refuses every question."""


@dataclass(frozen=True, slots=True)
class ThrottleReason:
    """One reason for which a device runs below its highest clock."""

    name: str
    bit: int
    """In NVML's mask of clock event reasons."""
    costs: bool
    """Whether work is slowed by it: an idle device lowers its clock too, and nobody is hurt."""
    meaning: str


THROTTLE_REASONS: dict[str, ThrottleReason] = {
    reason.name: reason
    for reason in (
        ThrottleReason("idle", 0x1, False, "nothing runs, so the clock is lowered"),
        ThrottleReason("application_clocks", 0x2, True, "a lower clock was set for applications"),
        ThrottleReason("power_cap", 0x4, True, "the power limit is reached"),
        ThrottleReason("hardware_slowdown", 0x8, True, "the hardware halves its clock or worse: heat, or power supply"),
        ThrottleReason("sync_boost", 0x10, True, "another device of its boost group is slower"),
        ThrottleReason("thermal", 0x20, True, "the driver lowers the clock to keep the temperature limit"),
        ThrottleReason("hardware_thermal", 0x40, True, "too hot: the hardware halves its clock or worse"),
        ThrottleReason("power_brake", 0x80, True, "the power supply asked for less (power brake signal)"),
        ThrottleReason("display_clocks", 0x100, False, "a display sets the clock"),
    )
}
"""By name. A bit that is not here is given as ``bit_0x200``: newer drivers may know more."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a field of `Reading` means."""

    name: str
    kind: Literal["gauge", "counter", "limit", "state"]
    """A value of the moment; a sum that only grows; a setting or maximum that rarely changes; one of some states."""
    meaning: str


def _figure(kind: str, meaning: str) -> Any:
    return field(default=None, metadata={"kind": kind, "meaning": meaning})


def _gauge(meaning: str) -> Any:
    return _figure("gauge", meaning)


def _counter(meaning: str) -> Any:
    return _figure("counter", meaning)


def _limit(meaning: str) -> Any:
    return _figure("limit", meaning)


def _state(meaning: str) -> Any:
    return _figure("state", meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Which device: what does not change while it is watched. What is unknown is None."""

    index: int
    """The number that its driver gives it; a MIG instance has that of its card."""
    mig: int | None = None
    """Number of the MIG instance on its card; None for a whole device."""
    vendor: str | None = None
    """``nvidia``, ``amd``, ``intel``, ``apple``."""
    name: str | None = None
    """Exactly as the driver reports it."""
    uuid: str | None = None
    pci_bus_id: str | None = None
    """``00000000:01:00.0``."""
    pci_id: str | None = None
    """Vendor and device: ``10de:2330``."""
    pci_subsystem_id: str | None = None
    """Vendor and device of the board's maker."""
    serial: str | None = None
    compute_capability: tuple[int, int] | None = None
    architecture: str | None = None
    multiprocessors: int | None = None
    """Of a MIG instance: those that are its own."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    mig_profile: str | None = None
    """``1g.10gb``."""
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest that the driver runs."""
    vbios_version: str | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None
    """Cores near to it: ``0-31,64-95``."""
    other: Mapping[str, str] = field(default_factory=dict)
    """What else its source says of it, by the source's own names."""

    @property
    def key(self) -> str:
        """Unique on its machine: ``0``, or ``0:2`` for a MIG instance."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """One process on one device."""

    pid: int
    kind: Literal["compute", "graphics", "compute+graphics"] | None = None
    memory_bytes: int | None = None
    """On the device; None where the driver does not say (as inside a container, or under Windows)."""
    busy_percent: float | None = None
    """Share of time in which a kernel of it ran."""
    memory_busy_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    name: str | None = None
    """Of its program: ``python``."""
    command: str | None = None
    user: str | None = None
    cpu_percent: float | None = None
    """Of one core: 250 is two and a half cores."""
    host_memory_bytes: int | None = None
    """Resident in the host's memory."""
    started_ns: int | None = None
    container: str | None = None
    """Its runtime and short id: ``docker:3f2a9c01b7de``; a Kubernetes pod where the host tells."""
    slurm_job: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one device says at one moment. A figure is None where it is unknown; `why_missing` says why."""

    at_ns: int
    """Unix time."""
    device: int
    """Its index."""
    mig: int | None = None
    """Of the MIG instance; None for the whole device."""
    state: State = "ok"
    fault: str | None = None
    """In the driver's words, where the state is not ok."""
    missing: Mapping[str, Why] = field(default_factory=dict)
    """Figure → why it is None. One that is None and not here was not asked for."""

    busy_percent: float | None = _gauge("some kernel ran, however few units it used (what NVML calls utilisation)")
    memory_busy_percent: float | None = _gauge("device memory was read or written")
    encoder_percent: float | None = _gauge("the video encoder was busy")
    decoder_percent: float | None = _gauge("the video decoder was busy")
    jpeg_percent: float | None = _gauge("the JPEG decoder was busy")
    optical_flow_percent: float | None = _gauge("the optical flow unit was busy")

    engine_percent: float | None = _gauge("some compute or graphics work ran, from performance counters (GPM)")
    sm_busy_percent: float | None = _gauge("multiprocessors with work, mean over all (GPM)")
    sm_occupancy_percent: float | None = _gauge("warps in flight, of those that the multiprocessors can hold (GPM)")
    tensor_percent: float | None = _gauge("tensor cores at work (GPM)")
    tensor_half_percent: float | None = _gauge("tensor cores at work in 16 bits (GPM)")
    tensor_integer_percent: float | None = _gauge("tensor cores at work on integers (GPM)")
    tensor_double_percent: float | None = _gauge("tensor cores at work in 64 bits (GPM)")
    dram_percent: float | None = _gauge("bandwidth of device memory in use, of the greatest possible (GPM)")
    fp64_percent: float | None = _gauge("64-bit units at work, tensor cores apart (GPM)")
    fp32_percent: float | None = _gauge("32-bit units at work (GPM)")
    fp16_percent: float | None = _gauge("16-bit units at work, tensor cores apart (GPM)")
    integer_percent: float | None = _gauge("integer units at work (GPM)")

    memory_total_bytes: int | None = _limit("device memory")
    memory_used_bytes: int | None = _gauge("in use by processes, without what the driver reserves")
    memory_free_bytes: int | None = _gauge("free")
    memory_reserved_bytes: int | None = _gauge("kept by driver and firmware")
    bar1_total_bytes: int | None = _limit("window through which host and peers see device memory")
    bar1_used_bytes: int | None = _gauge("of that window in use")

    power_w: float | None = _gauge("power draw as the driver states it: a mean of one second from Ampere on, but GA100")
    power_average_w: float | None = _gauge("mean over about a second")
    power_instant_w: float | None = _gauge("of this instant")
    power_limit_w: float | None = _limit("limit that holds, the lowest of those set")
    power_limit_set_w: float | None = _limit("limit that was asked for")
    power_limit_default_w: float | None = _limit("limit after a reboot")
    power_limit_min_w: float | None = _limit("lowest limit that can be set")
    power_limit_max_w: float | None = _limit("highest limit that can be set")
    module_power_w: float | None = _gauge("of the whole module, CPU included (Grace)")
    module_power_limit_w: float | None = _limit("of the whole module")
    memory_power_w: float | None = _gauge("of the device's memory")
    energy_j: float | None = _counter("since the driver was loaded")

    clock_hz: float | None = _gauge("of the multiprocessors")
    clock_max_hz: float | None = _limit("highest of the multiprocessors")
    clock_graphics_hz: float | None = _gauge("of the graphics domain")
    clock_graphics_max_hz: float | None = _limit("highest of the graphics domain")
    clock_memory_hz: float | None = _gauge("of device memory")
    clock_memory_max_hz: float | None = _limit("highest of device memory")
    clock_video_hz: float | None = _gauge("of the video units")
    clock_video_max_hz: float | None = _limit("highest of the video units")
    clock_application_hz: float | None = _limit("of the graphics domain, as set for applications")
    clock_application_memory_hz: float | None = _limit("of device memory, as set for applications")
    performance_state: int | None = _state("0 is the fastest, 15 the slowest")

    temperature_c: float | None = _gauge("of the chip")
    temperature_memory_c: float | None = _gauge("of device memory")
    temperature_margin_c: float | None = _gauge("how far below the limit at which it slows down")
    temperature_slowdown_c: float | None = _limit("at which the hardware slows down")
    temperature_shutdown_c: float | None = _limit("at which it switches off")
    temperature_target_c: float | None = _limit("at which the driver begins to lower the clock")
    temperature_memory_max_c: float | None = _limit("highest for device memory in operation")
    fan_percent: float | None = _gauge("of the fastest fan, as intended; may exceed 100")
    fan_rpm: float | None = _gauge("of the first fan")
    fans: int | None = _limit("number of fans")

    throttle_reasons: tuple[str, ...] | None = _state("why the clock is below its highest: names of THROTTLE_REASONS")
    throttled_power_s: float | None = _counter("time at a lowered clock because of the power limit")
    throttled_thermal_s: float | None = _counter("time at a lowered clock that the driver set because of heat")
    throttled_hardware_thermal_s: float | None = _counter("time at a lowered clock that the hardware set: heat")
    throttled_power_brake_s: float | None = _counter("time at a lowered clock because the power supply asked for it")
    throttled_sync_boost_s: float | None = _counter("time at a lowered clock because of another device")

    pcie_generation: int | None = _gauge("of the link now; an idle device lowers it")
    pcie_generation_max: int | None = _limit("that device and slot can reach together")
    pcie_generation_device_max: int | None = _limit("that the device can reach in the right slot")
    pcie_width: int | None = _gauge("lanes in use")
    pcie_width_max: int | None = _limit("lanes that device and slot can use together")
    pcie_sent_bytes_per_s: float | None = _gauge("from the device to the host")
    pcie_received_bytes_per_s: float | None = _gauge("from the host to the device")
    pcie_replays: int | None = _counter("packets that were sent again: errors of the link")

    nvlink_links: int | None = _gauge("links that are up")
    nvlink_links_max: int | None = _limit("links that the device has")
    nvlink_link_bytes_per_s: float | None = _limit("one link, one direction")
    nvlink_sent_bytes: int | None = _counter("over all links, data only")
    nvlink_received_bytes: int | None = _counter("over all links, data only")
    nvlink_sent_bytes_per_s: float | None = _gauge("over all links")
    nvlink_received_bytes_per_s: float | None = _gauge("over all links")
    nvlink_errors: int | None = _counter("CRC, replay and recovery errors over all links")

    ecc_enabled: bool | None = _state("memory errors are detected and corrected")
    ecc_corrected: int | None = _counter("errors since the driver was loaded")
    ecc_uncorrected: int | None = _counter("errors since the driver was loaded: data was lost")
    ecc_corrected_lifetime: int | None = _counter("errors in the device's life")
    ecc_uncorrected_lifetime: int | None = _counter("errors in the device's life: data was lost")
    rows_remapped_corrected: int | None = _counter("memory rows replaced after errors that were corrected")
    rows_remapped_uncorrected: int | None = _counter("memory rows replaced after errors that were not")
    row_remap_pending: bool | None = _state("a row will be replaced at the next reset")
    row_remap_failed: bool | None = _state("a row could not be replaced: the device needs service")
    pages_retired: int | None = _counter("memory pages taken out of use (before Ampere)")
    page_retirement_pending: bool | None = _state("a page will be taken out of use at the next reset")
    xid: int | None = _state(
        "the last error event that the driver reported while it was watched; not_yet: there was none"
    )
    xid_events: int | None = _counter("error events while it was watched")

    compute_mode: str | None = _state("default, exclusive_process or prohibited")
    persistence: bool | None = _state("the driver stays loaded while nobody uses the device")
    mig_enabled: bool | None = _state("the device is cut into instances")
    reset_needed: bool | None = _state("the driver asks for a reset or reboot")

    processes: tuple[ProcessUse, ...] | None = None
    """None where the driver does not say; empty where nothing runs."""
    other: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    """What else the source gave, by the source's own names with units: nothing of a log is dropped."""

    def __post_init__(self) -> None:
        for name, why in self.missing.items():
            if why not in WHYS:
                raise SettingError(f"Reading(missing={{{name!r}: {why!r}}}): must be one of {', '.join(WHYS)}.")
            if getattr(self, name) is not None:
                raise SettingError(f"Reading({name}={getattr(self, name)!r}): is known, so `missing` must not name it.")

    @property
    def key(self) -> str:
        """That of its device."""
        return str(self.device) if self.mig is None else f"{self.device}:{self.mig}"

    def why_missing(self, name: str) -> Why | None:
        """Why this figure is None; None where it is known."""
        if getattr(self, name) is not None:
            return None
        return self.missing.get(name, "not_asked")

    @property
    def slowing(self) -> tuple[str, ...] | None:
        """Those throttle reasons that slow work down; None where the driver does not say."""
        if self.throttle_reasons is None:
            return None
        return tuple(name for name in self.throttle_reasons if _costs(name))


def _costs(name: str) -> bool:
    """A reason that nobody here knows may be harmless; it is shown, and nothing is claimed of it."""
    return name in THROTTLE_REASONS and THROTTLE_REASONS[name].costs


FIGURES: dict[str, Figure] = {
    each.name: Figure(each.name, each.metadata["kind"], each.metadata["meaning"])
    for each in fields(Reading)
    if "meaning" in each.metadata
}
"""Every figure of a `Reading`, by name."""
