"""What is asked of an NVIDIA device, how often, and which figures of a reading the answer fills.

A table: each question is a name, its figures, and a function of an `Asker` that returns their values. Units become
SI here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nearpeak.hardware.live.driver import ALL_LINKS, Asker, Refused, field_value
from nearpeak.hardware.reading import THROTTLE_REASONS

__all__ = ["OF_INSTANCES", "QUESTIONS", "Question", "Tier", "Values"]

Tier = Literal["fast", "slow", "rare", "holding"]
"""Each reading; every few seconds; about once a minute, since it hardly changes; rarely, since the driver is held for
the time of the question and every other user of it waits."""
Values = dict[str, Any]
"""Figure → value, or the `Refused` that came instead."""

MEMORY_V2 = 0x02000028
GRAPHICS, SM, MEMORY, VIDEO = 0, 1, 2, 3
MW, MHZ, NS, MJ, KIB, KB = 1e-3, 1e6, 1e-9, 1e-3, 1024, 1000
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
UNKNOWN_STATE = 32
MOST_LINKS = 18

POWER_AVERAGE, POWER_INSTANT, MEMORY_TEMPERATURE = 185, 186, 82
POWER_SCOPE_MODULE, POWER_SCOPE_MEMORY = 1, 2
THROTTLE_FIELDS = {
    "throttled_power_s": 74,
    "throttled_sync_boost_s": 76,
    "throttled_thermal_s": 269,
    "throttled_hardware_thermal_s": 270,
    "throttled_power_brake_s": 271,
}
LINK_SENT, LINK_RECEIVED = 138, 139
LINK_ERROR_FIELDS = (38, 45, 52, 59)
"""Flow control CRC, data CRC, replays, recoveries; each over all links."""
LINK_SPEED_MBPS, LINK_COUNT = 90, 91
RECOVERY_ACTION = 230


@dataclass(frozen=True, slots=True)
class Question:
    """One call, or a few that belong together."""

    name: str
    tier: Tier
    figures: tuple[str, ...]
    ask: Callable[[Asker], Values]


def _named(figures: tuple[str, ...], values: Any, scale: float = 1) -> Values:
    return {name: value * scale for name, value in zip(figures, values, strict=False)}


def _utilization(ask: Asker) -> Values:
    rates = ask("nvmlDeviceGetUtilizationRates")
    return {"busy_percent": float(rates.gpu), "memory_busy_percent": float(rates.memory)}


def _memory(ask: Asker) -> Values:
    """Version 2 tells what the driver keeps apart from what is used; version 1 adds it to the used."""
    try:
        found = ask("nvmlDeviceGetMemoryInfo", MEMORY_V2)
        kept: Any = found.reserved
    except Refused as refused:
        if not refused.final:
            raise
        found, kept = ask("nvmlDeviceGetMemoryInfo"), refused.record()
    values = {"total": found.total, "used": found.used, "free": found.free, "reserved": kept}
    return {f"memory_{name}_bytes": value for name, value in values.items()}


def _bar1(ask: Asker) -> Values:
    found = ask("nvmlDeviceGetBAR1MemoryInfo")
    return {"bar1_total_bytes": found.bar1Total, "bar1_used_bytes": found.bar1Used}


def _scaled(figure: str, function: str, *arguments: Any, scale: float = 1, digits: int | None = None) -> Any:
    """A question of one number."""

    def ask(asker: Asker) -> Values:
        scaled = asker(function, *arguments) * scale  # a whole number stays one unless its unit is not 1
        return {figure: scaled if digits is None else round(scaled, digits)}

    return ask


def _fields(asker: Asker, fields: dict[str, tuple[int, int, float]]) -> Values:
    """Several field values in one call: figure → (field, scope, factor). What was refused for good is left out."""
    values: Values = {figure: asker.refused[figure] for figure in fields if figure in asker.refused}
    asked = {figure: entry for figure, entry in fields.items() if figure not in values}
    if not asked:
        return values
    entries = asker("nvmlDeviceGetFieldValues", [(field, scope) for field, scope, _ in asked.values()])
    for (figure, (_, _, factor)), entry in zip(asked.items(), entries, strict=True):
        value = field_value(entry)
        values[figure] = value if isinstance(value, Refused) else _in_units(value, factor)
        if isinstance(value, Refused) and value.final:
            asker.refused[figure] = value
    return values


def _in_units(value: float, factor: float) -> float | int:
    """Whole numbers stay whole; a thousandth is as fine as any of these is measured."""
    return value * factor if isinstance(factor, int) else round(value * factor, 3)


_FAST_FIELDS: dict[str, tuple[int, int, float]] = {
    "power_average_w": (POWER_AVERAGE, 0, MW),
    "power_instant_w": (POWER_INSTANT, 0, MW),
    "temperature_memory_c": (MEMORY_TEMPERATURE, 0, 1.0),
    **{figure: (field, 0, NS) for figure, field in THROTTLE_FIELDS.items()},
    "nvlink_sent_bytes": (LINK_SENT, ALL_LINKS, KIB),
    "nvlink_received_bytes": (LINK_RECEIVED, ALL_LINKS, KIB),
}


def _module_power(ask: Asker) -> Values:
    fields = {
        "module_power_w": (POWER_AVERAGE, POWER_SCOPE_MODULE, MW),
        "module_power_limit_w": (190, POWER_SCOPE_MODULE, MW),
        "memory_power_w": (POWER_AVERAGE, POWER_SCOPE_MEMORY, MW),
    }
    return _fields(ask, fields)


def _throttle_reasons(ask: Asker) -> Values:
    mask = ask.first_of("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return {"throttle_reasons": reason_names(mask)}


def reason_names(mask: int) -> tuple[str, ...]:
    """Names of the bits that are set; what is not known is given by its bit."""
    known = {reason.bit: reason.name for reason in THROTTLE_REASONS.values()}
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return tuple(known.get(bit, f"bit_{bit:#x}") for bit in bits)


def _performance_state(ask: Asker) -> Values:
    state = ask("nvmlDeviceGetPerformanceState")
    if not 0 <= state < UNKNOWN_STATE:
        raise Refused(3, "the driver does not know its performance state")
    return {"performance_state": state}


def _clock(figure: str, domain: int, function: str = "nvmlDeviceGetClockInfo") -> Any:
    return _scaled(figure, function, domain, scale=MHZ)


def _fans(ask: Asker) -> Values:
    """Of several fans the fastest."""
    values: Values = {}
    try:
        count = ask("nvmlDeviceGetNumFans")
        speeds = [ask("nvmlDeviceGetFanSpeed_v2", fan) for fan in range(count)]
        values["fans"] = count
    except Refused as refused:
        if refused.code != 13:
            raise
        speeds, values["fans"] = [ask("nvmlDeviceGetFanSpeed")], refused.record()
    nothing = Refused(3, "the device has no fan")
    values["fan_percent"] = float(max(speeds)) if speeds else nothing
    try:
        values["fan_rpm"] = float(ask("nvmlDeviceGetFanSpeedRPM")) if speeds else nothing
    except Refused as refused:
        values["fan_rpm"] = refused.record()
    return values


def _temperature(ask: Asker) -> Values:
    """Of the chip's sensor; libraries to come have only the newer of the two functions."""
    try:
        return {"temperature_c": float(ask("nvmlDeviceGetTemperature", 0))}
    except Refused as refused:
        if refused.code not in (13, 26):
            raise
    return {"temperature_c": float(ask("nvmlDeviceGetTemperatureV", 0))}


def _limits(ask: Asker) -> Values:
    lowest, highest = ask("nvmlDeviceGetPowerManagementLimitConstraints")
    return {"power_limit_min_w": round(lowest * MW, 3), "power_limit_max_w": round(highest * MW, 3)}


def _ecc(ask: Asker) -> Values:
    current, _ = ask("nvmlDeviceGetEccMode")
    return {"ecc_enabled": bool(current)}


def _rows(ask: Asker) -> Values:
    corrected, uncorrected, pending, failed = ask("nvmlDeviceGetRemappedRows")
    return {
        "rows_remapped_corrected": corrected,
        "rows_remapped_uncorrected": uncorrected,
        "row_remap_pending": bool(pending),
        "row_remap_failed": bool(failed),
    }


def _pages(ask: Asker) -> Values:
    retired = sum(len(ask("nvmlDeviceGetRetiredPages", cause)) for cause in (0, 1))
    return {"pages_retired": retired}


def _flag(figure: str, function: str) -> Any:
    return lambda ask: {figure: bool(ask(function))}


def _mig(ask: Asker) -> Values:
    current, _ = ask("nvmlDeviceGetMigMode")
    return {"mig_enabled": bool(current)}


def _compute_mode(ask: Asker) -> Values:
    mode = ask("nvmlDeviceGetComputeMode")
    return {"compute_mode": COMPUTE_MODES[mode] if 0 <= mode < len(COMPUTE_MODES) else f"mode_{mode}"}


def _recovery(ask: Asker) -> Values:
    values = _fields(ask, {"reset_needed": (RECOVERY_ACTION, 0, 1)})
    action = values["reset_needed"]
    return {"reset_needed": action if isinstance(action, Refused) else action != 0}


def _links(ask: Asker) -> Values:
    """Links that are up; asked one by one, until the driver says that there is no such link."""
    up = number = 0
    for link in range(MOST_LINKS):
        try:
            up += bool(ask("nvmlDeviceGetNvLinkState", link))
        except Refused as refused:
            if link == 0 or not refused.final:
                raise
            break
        number += 1
    return {"nvlink_links": up, "nvlink_links_max": number}


def _link_speed(ask: Asker) -> Values:
    values = _fields(ask, {"nvlink_link_bytes_per_s": (LINK_SPEED_MBPS, 0, 1e6)})
    return {
        name: value if isinstance(value, Refused) or value else Refused(3, "no link") for name, value in values.items()
    }


def _link_errors(ask: Asker) -> Values:
    values = list(_fields(ask, {str(field): (field, 0, 1) for field in LINK_ERROR_FIELDS}).values())
    known = [value for value in values if not isinstance(value, Refused)]
    return {"nvlink_errors": sum(known) if known else values[0]}


def _pcie_throughput(ask: Asker) -> Values:
    """Of 20 ms, for which the driver is held, each way."""
    sent, received = (ask("nvmlDeviceGetPcieThroughput", direction) * float(KB) for direction in (0, 1))
    return {"pcie_sent_bytes_per_s": sent, "pcie_received_bytes_per_s": received}


def _unit_busy(figure: str, function: str) -> Any:
    return lambda ask: {figure: float(ask(function)[0])}


def _one(name: str, tier: Tier, figure: str, ask: Any) -> Question:
    return Question(name, tier, (figure,), ask)


QUESTIONS: tuple[Question, ...] = (
    Question("utilization", "fast", ("busy_percent", "memory_busy_percent"), _utilization),
    Question(
        "memory",
        "fast",
        ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"),
        _memory,
    ),
    _one("power", "fast", "power_w", _scaled("power_w", "nvmlDeviceGetPowerUsage", scale=MW, digits=3)),
    _one("energy", "slow", "energy_j", _scaled("energy_j", "nvmlDeviceGetTotalEnergyConsumption", scale=MJ, digits=3)),
    Question(
        "fields",
        "fast",
        tuple(_FAST_FIELDS),
        lambda ask: _fields(ask, _FAST_FIELDS),
    ),
    _one("clock", "fast", "clock_hz", _clock("clock_hz", SM)),
    _one("memory clock", "slow", "clock_memory_hz", _clock("clock_memory_hz", MEMORY)),
    _one("temperature", "fast", "temperature_c", _temperature),
    _one("throttle reasons", "fast", "throttle_reasons", _throttle_reasons),
    _one("performance state", "slow", "performance_state", _performance_state),
    _one(
        "pcie generation", "slow", "pcie_generation", _scaled("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration")
    ),
    _one("pcie width", "slow", "pcie_width", _scaled("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")),
    _one(
        "margin",
        "slow",
        "temperature_margin_c",
        _scaled("temperature_margin_c", "nvmlDeviceGetMarginTemperature", scale=1.0),
    ),
    _one("graphics clock", "slow", "clock_graphics_hz", _clock("clock_graphics_hz", GRAPHICS)),
    _one("video clock", "slow", "clock_video_hz", _clock("clock_video_hz", VIDEO)),
    Question("fans", "slow", ("fans", "fan_percent", "fan_rpm"), _fans),
    Question("bar1", "slow", ("bar1_total_bytes", "bar1_used_bytes"), _bar1),
    _one("encoder", "slow", "encoder_percent", _unit_busy("encoder_percent", "nvmlDeviceGetEncoderUtilization")),
    _one("decoder", "slow", "decoder_percent", _unit_busy("decoder_percent", "nvmlDeviceGetDecoderUtilization")),
    _one("jpeg", "slow", "jpeg_percent", _unit_busy("jpeg_percent", "nvmlDeviceGetJpgUtilization")),
    _one("flow", "slow", "optical_flow_percent", _unit_busy("optical_flow_percent", "nvmlDeviceGetOfaUtilization")),
    _one(
        "limit",
        "slow",
        "power_limit_w",
        _scaled("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", scale=MW, digits=3),
    ),
    _one(
        "set limit",
        "slow",
        "power_limit_set_w",
        _scaled("power_limit_set_w", "nvmlDeviceGetPowerManagementLimit", scale=MW, digits=3),
    ),
    Question("module", "slow", ("module_power_w", "module_power_limit_w", "memory_power_w"), _module_power),
    _one("replays", "slow", "pcie_replays", _scaled("pcie_replays", "nvmlDeviceGetPcieReplayCounter")),
    _one("ecc", "slow", "ecc_enabled", _ecc),
    *(
        _one(figure, "slow", figure, _scaled(figure, "nvmlDeviceGetTotalEccErrors", kind, span))
        for figure, kind, span in (
            ("ecc_corrected", 0, 0),
            ("ecc_uncorrected", 1, 0),
            ("ecc_corrected_lifetime", 0, 1),
            ("ecc_uncorrected_lifetime", 1, 1),
        )
    ),
    Question(
        "rows",
        "slow",
        ("rows_remapped_corrected", "rows_remapped_uncorrected", "row_remap_pending", "row_remap_failed"),
        _rows,
    ),
    _one("recovery", "slow", "reset_needed", _recovery),
    _one("mig", "slow", "mig_enabled", _mig),
    _one("compute mode", "slow", "compute_mode", _compute_mode),
    _one("persistence", "slow", "persistence", _flag("persistence", "nvmlDeviceGetPersistenceMode")),
    _one("pages", "rare", "pages_retired", _pages),
    _one(
        "page pending",
        "rare",
        "page_retirement_pending",
        _flag("page_retirement_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    ),
    *(
        _one(figure, "rare", figure, _clock(figure, domain, "nvmlDeviceGetMaxClockInfo"))
        for figure, domain in (
            ("clock_max_hz", SM),
            ("clock_graphics_max_hz", GRAPHICS),
            ("clock_memory_max_hz", MEMORY),
            ("clock_video_max_hz", VIDEO),
        )
    ),
    *(
        _one(figure, "rare", figure, _clock(figure, domain, "nvmlDeviceGetApplicationsClock"))
        for figure, domain in (("clock_application_hz", GRAPHICS), ("clock_application_memory_hz", MEMORY))
    ),
    Question("limits", "rare", ("power_limit_min_w", "power_limit_max_w"), _limits),
    _one(
        "default limit",
        "rare",
        "power_limit_default_w",
        _scaled("power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", scale=MW, digits=3),
    ),
    *(
        _one(figure, "rare", figure, _scaled(figure, "nvmlDeviceGetTemperatureThreshold", threshold, scale=1.0))
        for figure, threshold in (
            ("temperature_shutdown_c", 0),
            ("temperature_slowdown_c", 1),
            ("temperature_memory_max_c", 2),
            ("temperature_target_c", 3),
        )
    ),
    _one(
        "pcie max", "rare", "pcie_generation_max", _scaled("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration")
    ),
    _one(
        "pcie device max",
        "rare",
        "pcie_generation_device_max",
        _scaled("pcie_generation_device_max", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    ),
    _one("pcie width max", "rare", "pcie_width_max", _scaled("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")),
    Question("links", "rare", ("nvlink_links", "nvlink_links_max"), _links),
    _one("link speed", "rare", "nvlink_link_bytes_per_s", _link_speed),
    _one("link errors", "rare", "nvlink_errors", _link_errors),
    Question("pcie throughput", "holding", ("pcie_sent_bytes_per_s", "pcie_received_bytes_per_s"), _pcie_throughput),
)
OF_INSTANCES = frozenset({"memory", "bar1"})
"""Questions that a MIG instance answers itself; all others are its card's."""
