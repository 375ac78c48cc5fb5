"""What a rendering of a run needs of its recording, as arrays on one clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearpeak.hardware.reading_store import load_devices
from nearpeak.recording import PHASES, ProcessRecord, ReadingRecord, Recording, StepRecord
from nearpeak.recording.arrays import read_columns
from nearpeak.recording.columns import unpack_columns

__all__ = ["DeviceColumns", "ProcessColumns", "RunColumns", "read_run"]

Floats = NDArray[np.float64]

STEP_NAMES = (
    "step",
    "ended_ns",
    "wall_s",
    *(f"{phase}_ms" for phase in PHASES),
    "samples",
    "tokens",
    "padded_tokens",
    "loss",
    "learning_rate",
    "grad_norm",
    "loss_scale",
    "allocated_bytes",
    "reserved_bytes",
    "peak_bytes",
    "rss_bytes",
)
READING_NAMES = (
    "at_ns",
    "device",
    "busy_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "power_limit_w",
    "clock_hz",
    "clock_max_hz",
    "temperature_c",
)
HOST_DEVICE, HOST_KEY = -1, "host"


@dataclass(frozen=True, slots=True)
class ProcessColumns:
    """Steps of one process."""

    record: ProcessRecord
    x: Floats
    """Seconds since the first step began; step numbers where no time is known."""
    values: dict[str, Floats]

    @property
    def name(self) -> str:
        return f"process {self.record.process}" if self.record.rank is None else f"rank {self.record.rank}"

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """Readings of one device, or of the host."""

    key: str
    """``0``, ``0:2`` for a MIG instance, ``host``."""
    model: str | None
    x: Floats
    values: dict[str, Floats]
    throttled: dict[str, int]
    """Reasons for a lowered clock and how many readings named them; empty where none was given."""

    @property
    def name(self) -> str:
        return "host" if self.is_host else f"device {self.key}"

    @property
    def is_host(self) -> bool:
        return self.key == HOST_KEY


@dataclass(frozen=True, slots=True)
class RunColumns:
    """All of a run that is drawn."""

    processes: list[ProcessColumns]
    devices: list[DeviceColumns]
    start_ns: float | None
    """Unix time of x = 0; None where the steps have no time of their own."""
    in_time: bool
    """Whether x is in seconds; else it counts steps."""

    @property
    def span(self) -> tuple[float, float] | None:
        """From the first step to the last."""
        ends = [each.x for each in self.processes if len(each)]
        return (0.0, max(float(x.max()) for x in ends)) if ends else None


def read_run(recording: Recording) -> RunColumns:
    """Read what is drawn, and lay it on one clock."""
    records = {each.process: each for each in recording.processes}
    columns = read_columns(recording, StepRecord, ("process", *STEP_NAMES))
    numbers = columns.pop("process")
    parted = {int(n): {name: column[numbers == n] for name, column in columns.items()} for n in np.unique(numbers)}
    start_ns = _start_ns(list(parted.values()))
    in_time = any(np.isfinite(values["wall_s"]).any() for values in parted.values())
    processes = [
        ProcessColumns(
            records.get(number, ProcessRecord(process=number, pid=0, started_ns=0)),
            _clock(values, start_ns, in_time),
            values,
        )
        for number, values in parted.items()
    ]
    processes.sort(key=lambda each: (each.record.rank is None, each.record.rank or 0, each.record.process))
    return RunColumns(processes, _devices(recording, start_ns), start_ns, in_time)


# -- clocks ------------------------------------------------------------------------------------------------------------


def _start_ns(processes: list[dict[str, Floats]]) -> float | None:
    """When the first step of any process began; None if a step does not say when it ended."""
    if not processes or any(np.isnan(values["ended_ns"]).any() for values in processes):
        return None
    return min(float((values["ended_ns"] - 1e9 * np.nan_to_num(values["wall_s"])).min()) for values in processes)


def _clock(values: dict[str, Floats], start_ns: float | None, in_time: bool) -> Floats:
    if start_ns is not None:
        return (values["ended_ns"] - start_ns) / 1e9
    return np.nancumsum(values["wall_s"]) if in_time else values["step"]


# -- readings ----------------------------------------------------------------------------------------------------------


def _devices(recording: Recording, start_ns: float | None) -> list[DeviceColumns]:
    """Readings of both kinds, rows and blocks; without a clock in the steps they begin at their own first moment."""
    found = _from_rows(recording) | _from_blocks(recording)
    if not found:
        return []
    zero_ns = start_ns if start_ns is not None else min(float(values["at_ns"].min()) for values in found.values())
    models, throttled = _models(recording), _throttled(recording)
    return [
        DeviceColumns(key, models.get(key), (values["at_ns"] - zero_ns) / 1e9, values, throttled.get(key, {}))
        for key, values in sorted(found.items(), key=lambda item: (item[0] == HOST_KEY, item[0]))
    ]


def _from_rows(recording: Recording) -> dict[str, dict[str, Floats]]:
    columns = read_columns(recording, ReadingRecord, READING_NAMES)
    parted = {}
    for number in np.unique(columns["device"]):
        key = _key(int(number))
        parted[key] = {name: column[columns["device"] == number] for name, column in columns.items()}
    return parted


def _from_blocks(recording: Recording) -> dict[str, dict[str, Floats]]:
    parts: dict[str, list[dict[str, Floats]]] = {}
    for block in recording.reading_blocks():
        cells = unpack_columns(block.data)
        if "at_ns" not in cells:
            continue
        missing = np.full(len(cells["at_ns"]), np.nan)
        wanted = [name for name in READING_NAMES if name != "device"]
        arrays = {name: np.array(cells[name], dtype=np.float64) if name in cells else missing for name in wanted}
        parts.setdefault(block.device, []).append(arrays)
    return {
        key: {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}
        for key, blocks in parts.items()
    }


def _models(recording: Recording) -> dict[str, str]:
    """By key: from the list of devices, and the names that rows carry."""
    described = {device.key: device.name for device in load_devices(recording) if device.name}
    with recording._open() as database:
        rows = database.execute("SELECT device, MAX(name) FROM readings GROUP BY device").fetchall()
    return described | {_key(number): name for number, name in rows if name}


def _throttled(recording: Recording) -> dict[str, dict[str, int]]:
    """How often each reason was given."""
    counts: dict[str, dict[str, int]] = {}
    with recording._open() as database:
        rows = database.execute("SELECT device, throttle_reasons, COUNT(*) FROM readings GROUP BY 1, 2").fetchall()
    found = [(_key(number), reasons, count) for number, reasons, count in rows]
    for block in recording.reading_blocks():
        reasons_of = unpack_columns(block.data).get("throttle_reasons", [])
        found += [(block.device, reasons, count) for reasons, count in Counter(reasons_of).items()]
    for key, reasons, count in found:
        for reason in filter(None, str(reasons or "").split(",")):
            own = counts.setdefault(key, {})
            own[reason] = own.get(reason, 0) + count
    return counts


def _key(device: int) -> str:
    return HOST_KEY if device == HOST_DEVICE else str(device)
