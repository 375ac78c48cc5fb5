"""AMD devices, through amdsmi (the `amd` extra, or the one that ROCm installs). What it says is `N/A` is unknown."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from nearpeak.hardware.live.nvml_card import now_ns
from nearpeak.hardware.reading import FIGURES, Device, ProcessUse, Reading, Why

__all__ = ["AmdSource"]

MHZ, MIB = 1e6, 2**20
NO_WORDS = ("", "N/A", "unsupported", "error", "no_permission")
NOT_SUPPORTED, NO_PERMISSION = 2, 10
"""Of amdsmi's status codes."""


class AmdSource:
    """One question a kind of figure; what amdsmi refuses for a device is unknown there, with its reason."""

    vendor = "amd"

    def __init__(self, amdsmi: Any = None) -> None:
        self._smi = amdsmi
        self._handles: list[Any] = []
        self._devices: list[Device] = []
        self.state: Literal["closed", "ok", "missing", "broken"] = "closed"
        self.detail: str | None = None

    @staticmethod
    def is_present() -> bool:
        """The kernel's driver is loaded."""
        return Path("/dev/kfd").exists()

    @property
    def devices(self) -> list[Device]:
        return list(self._devices)

    def open(self) -> None:
        """Find the devices."""
        if self._smi is None:
            if find_spec("amdsmi") is None:
                self.state, self.detail = "missing", "AMD devices are here; pip install 'nearpeak[amd]' reads them"
                return
            import amdsmi  # pyright: ignore[reportMissingImports]

            self._smi = amdsmi
        try:
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())
        except self._smi.AmdSmiException as error:
            self.state, self.detail = "broken", str(error)
            return
        self._devices = [self._describe(handle, index) for index, handle in enumerate(self._handles)]
        self.state = "ok"

    def read(self) -> list[Reading]:
        """One reading a device."""
        pairs = zip(self._devices, self._handles, strict=True)
        return [self._read(device, handle) for device, handle in pairs] if self.state == "ok" else []

    def ask_slow_now(self) -> None:
        """Every question is asked each time."""

    def close(self) -> None:
        """Leave the driver."""
        if self.state == "ok":
            self._ask("amdsmi_shut_down")
        self.state = "closed"

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer, or a word why there is none."""
        function = getattr(self._smi, name, None)
        if function is None:
            return "unsupported"
        try:
            return function(*arguments)
        except self._smi.AmdSmiException as error:
            code = error.get_error_code() if hasattr(error, "get_error_code") else None
            return {NOT_SUPPORTED: "unsupported", NO_PERMISSION: "no_permission"}.get(code or 0, "error")

    def _describe(self, handle: Any, index: int) -> Device:
        asic = _entries(self._ask("amdsmi_get_gpu_asic_info", handle))
        board = _entries(self._ask("amdsmi_get_gpu_board_info", handle))
        driver = _entries(self._ask("amdsmi_get_gpu_driver_info", handle))
        device_id, bdf = asic.get("device_id"), self._ask("amdsmi_get_gpu_device_bdf", handle)
        if isinstance(device_id, str) and device_id.startswith("0x"):
            device_id = int(device_id, 16)
        return Device(
            index=index,
            vendor="amd",
            name=_word(asic.get("market_name")) or _word(board.get("product_name")),
            uuid=_word(self._ask("amdsmi_get_gpu_device_uuid", handle)),
            pci_bus_id=bdf if isinstance(bdf, str) and ":" in bdf else None,
            pci_id=f"1002:{device_id:04x}" if isinstance(device_id, int) else None,
            serial=_word(asic.get("asic_serial")),
            multiprocessors=_whole(asic.get("num_compute_units")),
            driver_version=_word(driver.get("driver_version")),
        )

    def _read(self, device: Device, handle: Any) -> Reading:
        found: dict[str, Any] = {}
        for name, extra, fill in QUESTIONS:
            arguments = self._constants(extra)
            answer = "unsupported" if arguments is None else self._ask(name, handle, *arguments)
            found |= dict.fromkeys(fill, answer) if isinstance(answer, str) else _filled(answer, fill)
        known = {name: value for name, value in found.items() if not isinstance(value, str)}
        missing: dict[str, Why] = {name: found.get(name, "unsupported") for name in FIGURES if name not in known}
        return Reading(at_ns=now_ns(), device=device.index, missing=missing, processes=self._processes(handle), **known)

    def _constants(self, names: tuple[str, ...]) -> list[Any] | None:
        """Members of amdsmi's enumerations by name, None where this version lacks one."""
        found = []
        for name in names:
            kind, _, member = name.partition(".")
            value = getattr(getattr(self._smi, kind, None), member, None)
            if value is None:
                return None
            found.append(value)
        return found

    def _processes(self, handle: Any) -> tuple[ProcessUse, ...] | None:
        listed = self._ask("amdsmi_get_gpu_process_list", handle)
        if isinstance(listed, str):
            return None
        uses = []
        for entry in map(_entries, listed):
            pid, memory = _whole(entry.get("pid")), entry.get("memory_usage")
            if pid is not None:
                held = _whole(_entries(memory).get("vram_mem")) if memory is not None else _whole(entry.get("mem"))
                uses.append(ProcessUse(pid=pid, kind="compute", memory_bytes=held, name=_word(entry.get("name"))))
        return tuple(uses)


Fill = dict[str, tuple[tuple[str, ...], float]]
"""Figure → the entries of the answer that may hold it, the first that is there counts; and what one of it is in SI."""
ITSELF = "itself"
"""Stands for an answer that is a number."""
MOST_WATTS = 100_000
"""A power cap above it is in microwatts: on bare metal amdsmi gives these, to the host of virtual machines watts."""


def _clock(kind: str, figure: str) -> tuple[str, tuple[str, ...], Fill]:
    fill: Fill = {f"{figure}_hz": (("clk", "cur_clk"), MHZ), f"{figure}_max_hz": (("max_clk",), MHZ)}
    return "amdsmi_get_clock_info", (f"AmdSmiClkType.{kind}",), fill


def _temperature(kind: str, figure: str) -> tuple[str, tuple[str, ...], Fill]:
    names = (f"AmdSmiTemperatureType.{kind}", "AmdSmiTemperatureMetric.CURRENT")
    return "amdsmi_get_temp_metric", names, {figure: ((ITSELF,), 1.0)}


QUESTIONS: tuple[tuple[str, tuple[str, ...], Fill], ...] = (
    (
        "amdsmi_get_gpu_activity",
        (),
        {"busy_percent": (("gfx_activity",), 1.0), "memory_busy_percent": (("umc_activity",), 1.0)},
    ),
    (
        "amdsmi_get_gpu_vram_usage",
        (),
        {"memory_total_bytes": (("vram_total",), MIB), "memory_used_bytes": (("vram_used",), MIB)},
    ),
    (
        "amdsmi_get_power_info",
        (),
        {
            "power_w": (("current_socket_power", "average_socket_power"), 1.0),
            "power_average_w": (("average_socket_power",), 1.0),
            "power_instant_w": (("current_socket_power",), 1.0),
        },
    ),
    (
        "amdsmi_get_power_cap_info",
        (),
        {
            "power_limit_w": (("power_cap",), 1.0),
            "power_limit_default_w": (("default_power_cap",), 1.0),
            "power_limit_max_w": (("max_power_cap",), 1.0),
        },
    ),
    (
        "amdsmi_get_gpu_total_ecc_count",
        (),
        {"ecc_corrected": (("correctable_count",), 1), "ecc_uncorrected": (("uncorrectable_count",), 1)},
    ),
    (
        "amdsmi_get_pcie_info",
        (),
        {
            "pcie_width": (("pcie_width",), 1),
            "pcie_width_max": (("max_pcie_width",), 1),
            "pcie_replays": (("pcie_replay_count",), 1),
        },
    ),
    _clock("GFX", "clock"),
    _clock("MEM", "clock_memory"),
    _temperature("HOTSPOT", "temperature_c"),
    _temperature("VRAM", "temperature_memory_c"),
)
"""Function of amdsmi, what it takes beside the device, and the figures that its answer fills."""


def _filled(answer: Any, fill: Fill) -> dict[str, Any]:
    """Answers are numbers, or entries, some of them one level further down."""
    entries = {ITSELF: answer, **_entries(answer)}
    for nested in list(entries.values()):
        entries |= {name: value for name, value in _entries(nested).items() if name not in entries}
    found: dict[str, Any] = {}
    for figure, (names, unit) in fill.items():
        value = next((entries[name] for name in names if _is_number(entries.get(name))), None)
        found[figure] = "unsupported" if value is None else _in_units(figure, value, unit)
    return found


def _in_units(figure: str, value: float, unit: float) -> float | int:
    if figure.startswith("power_limit") and value > MOST_WATTS:
        value /= 1e6
    return int(value * unit) if isinstance(unit, int) else float(value * unit)


def _entries(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}


def _is_number(value: Any) -> bool:
    """amdsmi writes N/A where it has none; some versions give the largest number of the type."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and value not in (0xFFFF, 0xFFFFFFFF, 2**64 - 1)
    )


def _whole(value: Any) -> int | None:
    return int(value) if _is_number(value) else None


def _word(value: Any) -> str | None:
    return (
        value if isinstance(value, str) and value not in ("", "N/A", "unsupported", "error", "no_permission") else None
    )
