"""Reads what XProf made of a trace where the trace itself is gone: its own figures per step, of no finer grain.

The files are messages of `plugin/xprof/protobuf/*.proto` (openxla/xprof), or the same tables as JSON:
`*.overview_page.pb`, `*.input_pipeline.pb`, `*.tensorflow_stats.pb`, `*.kernel_stats.pb`. XProf gives each instant of a
step the cause with the highest priority of those that hold then, device work first, so its parts sum to the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError
from nearpeak.trace.octets import octets_of
from nearpeak.trace.wire import BYTES, EIGHT, Buffer, Fields, WireError

__all__ = ["PARTS", "InputStage", "OpTime", "XprofFigures", "is_xprof", "read_xprof", "xprof_below"]

PARTS: dict[str, str] = {
    "unknown": "no activity that XProf saw",
    "wait_input": "the host waits for the next batch",
    "to_device": "the host sends data to the device",
    "output": "data goes from the device to the host",
    "compute": "the device computes",
    "device_to_device": "data goes from device to device",
    "collectives": "the device exchanges with others",
    "host_compute": "only the host computes",
    "launch": "the host prepares and launches work",
    "compile": "the host compiles",
}
STEP_FIELDS = {3: "unknown", 11: "wait_input", 12: "to_device", 5: "output", 6: "compute"}
STEP_FIELDS |= {7: "device_to_device", 13: "collectives", 8: "host_compute", 9: "launch", 10: "compile"}
"""Of PerGenericStepDetails: field number → part."""
TPU_STEP_FIELDS = {13: "compute", 14: "host_compute", 15: "output", 3: "wait_input", 11: "collectives"}
TPU_STEP_FIELDS |= {12: "collectives", 18: "to_device", 16: "compute", 17: "wait_input"}
"""Of PerTpuStepDetails."""
JSON_COLUMNS = {"deviceComputeTimeMs": "compute", "deviceToDeviceTimeMs": "device_to_device"}
JSON_COLUMNS |= {"deviceCollectivesTimeMs": "collectives", "hostComputeTimeMs": "host_compute"}
JSON_COLUMNS |= {"kernelLaunchTimeMs": "launch", "infeedTimeMs": "wait_input", "outfeedTimeMs": "output"}
JSON_COLUMNS |= {"compileTimeMs": "compile", "otherTimeMs": "unknown", "tcComputeTimeMs": "compute"}
JSON_COLUMNS |= {"tcInfeedTimeMs": "wait_input", "tcOutfeedTimeMs": "output", "tcIdleTimeMs": "host_compute"}
JSON_COLUMNS |= {"hostTransferTimeMs": "to_device"}

TOOLS = ("overview_page", "input_pipeline", "input_pipeline_analyzer", "tensorflow_stats", "framework_op_stats")
TOOLS += ("kernel_stats",)
ALL_HOSTS = "ALL_HOSTS"
ENDINGS = (".pb", ".json", ".pb.gz", ".json.gz")
MOST_OPS = 50
LONGEST_MS = 1e11
"""Three years: no step takes as long."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class InputStage:
    """One stage of the input pipeline on the host."""

    name: str
    category: str
    count: int
    self_ms: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """An operation or a kernel and the time it took itself, over the whole profile."""

    name: str
    type: str
    on_device: bool
    count: int
    self_us: float
    tensor_cores: bool | None = None
    eligible: bool | None = None
    """Whether tensor cores could do it; None where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XprofFigures:
    """XProf's figures of one host. What its files do not hold is empty or None."""

    source: str
    host: str
    hardware: str | None = None
    step_ms: Floats = field(default_factory=lambda: np.zeros(0))
    parts_ms: dict[str, Floats] = field(default_factory=dict)
    """By the names of `PARTS`, per step."""
    input_percent: float | None = None
    """XProf's own verdict: the mean share of a step that is input."""
    verdict: str | None = None
    """``host``, ``device``, ``both`` or ``unknown``: where XProf sees the input bottleneck."""
    stages: tuple[InputStage, ...] = ()
    ops: tuple[OpTime, ...] = ()
    device_idle_share: float | None = None
    notes: tuple[str, ...] = ()


def is_xprof(path: Path) -> bool:
    """By its name, such as ``localhost.overview_page.pb``."""
    return _tool(path) is not None


def xprof_below(folder: Path) -> list[Path]:
    """Every file of XProf in a folder and below, by name."""
    return sorted(path for path in folder.rglob("*") if is_xprof(path) and path.is_file())


def read_xprof(paths: Sequence[Path]) -> list[XprofFigures]:
    """Each host's figures, from whichever of its files there are."""
    hosts: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(paths):
        host = path.name.split(f".{_tool(path)}")[0]
        hosts.setdefault((str(path.parent), host), []).append(path)
    if not hosts:
        raise DataError("no file of XProf was given.")
    found = _without_sum([_of_host(host, files) for (_, host), files in hosts.items()])
    if not any(len(each.step_ms) or each.ops or each.stages for each in found):
        raise DataError(f"{paths[0]}: no figure of XProf is in it; give the *.xplane.pb file that it was made from.")
    return found


def _without_sum(hosts: list[XprofFigures]) -> list[XprofFigures]:
    """XProf writes figures of all hosts together beside those of each: they would count twice."""
    single = [each for each in hosts if each.host != ALL_HOSTS]
    if len(single) == len(hosts) or not any(len(each.step_ms) for each in single):
        return hosts
    note = f"the figures of {ALL_HOSTS} are the sum of the single hosts' and were left out"
    return [replace(single[0], notes=(*single[0].notes, note)), *single[1:]]


def _tool(path: Path) -> str | None:
    stem = next((path.name.removesuffix(ending) for ending in ENDINGS if path.name.endswith(ending)), "")
    return next((tool for tool in TOOLS if stem.endswith(f".{tool}") or stem == tool), None)


def _of_host(host: str, files: list[Path]) -> XprofFigures:
    figures = XprofFigures(source=", ".join(path.name for path in files), host=host)
    problems: list[str] = []
    read = 0
    for path in files:
        try:
            figures = _with_file(figures, path)
            read += 1
        except WireError as error:
            problems.append(f"{path.name} is damaged: {error}")
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            problems.append(f"{path.name} is no JSON of XProf: {error}.")
    if not read:
        raise DataError(f"{files[0].parent}: " + " ".join(problems))
    if not len(figures.step_ms):
        problems.append("XProf's files hold no times of steps.")
    return replace(figures, notes=(*figures.notes, *problems))


def _with_file(figures: XprofFigures, path: Path) -> XprofFigures:
    tool = _tool(path)
    with octets_of(path) as octets:
        if ".json" in path.name:
            return _with_tables(figures, bytes(octets))
        buffer = Buffer(octets)
        top = buffer.fields_of(0, buffer.size)
        if tool == "overview_page":
            return _with_overview(figures, buffer, top)
        if tool in ("input_pipeline", "input_pipeline_analyzer"):
            return _with_analysis(figures, buffer, top)
        return replace(figures, ops=(*figures.ops, *_ops(buffer, top, tool == "kernel_stats")))


# -- messages ----------------------------------------------------------------------------------------------------------


def _with_overview(figures: XprofFigures, buffer: Buffer, top: Fields) -> XprofFigures:
    for analysis in _messages(buffer, top, 2):
        figures = _with_analysis(figures, buffer, analysis)
    for page in _messages(buffer, top, 3):
        idle = _double(page, 2)
        figures = replace(figures, device_idle_share=None if idle is None else idle / 100)
    for environment in _messages(buffer, top, 6):
        figures = replace(figures, hardware=figures.hardware or _string(buffer, environment, 4))
    return figures


def _with_analysis(figures: XprofFigures, buffer: Buffer, analysis: Fields) -> XprofFigures:
    """Of an InputPipelineAnalysisResult."""
    steps = [_step(buffer, each) for each in _packed_messages(buffer, analysis, 4)]
    steps = [(total, parts) for total, parts in steps if total > 0 and _sound([total, *parts.values()])]
    mean_percent = _double(analysis, 11)
    for summary in _messages(buffer, analysis, 3):
        mean_percent = _double(summary, 1) or mean_percent
    verdict = [_verdict(buffer, each) for each in _messages(buffer, analysis, 7)]
    figures = replace(
        figures,
        hardware=_string(buffer, analysis, 9) or figures.hardware,
        input_percent=mean_percent if mean_percent is not None else figures.input_percent,
        verdict=next((each for each in verdict if each), figures.verdict),
        stages=figures.stages or tuple(_stage(buffer, each) for each in _messages(buffer, analysis, 6)),
    )
    return figures if len(figures.step_ms) else _with_steps(figures, steps)


def _sound(times_ms: list[float]) -> bool:
    return bool(np.isfinite(times_ms).all()) and max(times_ms) < LONGEST_MS


def _with_steps(figures: XprofFigures, steps: list[tuple[float, dict[str, float]]]) -> XprofFigures:
    parts = {name: np.array([each.get(name, 0.0) for _, each in steps]) for name in PARTS}
    return replace(figures, step_ms=np.array([total for total, _ in steps]), parts_ms=parts)


def _step(buffer: Buffer, packed: tuple[str, Fields]) -> tuple[float, dict[str, float]]:
    kind, fields = packed
    numbers = TPU_STEP_FIELDS if kind.endswith("PerTpuStepDetails") else STEP_FIELDS
    parts: dict[str, float] = {}
    for number, part in numbers.items():
        parts[part] = parts.get(part, 0.0) + max(0.0, _double(fields, number) or 0.0)
    told = None if numbers is TPU_STEP_FIELDS else _double(fields, 2)
    return told if told is not None else sum(parts.values()), parts


def _stage(buffer: Buffer, fields: Fields) -> InputStage:
    return InputStage(
        name=_string(buffer, fields, 1) or "",
        category=_string(buffer, fields, 7) or "",
        count=int(fields.numbers(2, 1)[0]),
        self_ms=_double(fields, 5) or 0.0,
    )


def _verdict(buffer: Buffer, recommendation: Fields) -> str | None:
    for _, analysis in _packed_messages(buffer, recommendation, 2):
        return _string(buffer, analysis, 1)
    return None


def _ops(buffer: Buffer, top: Fields, are_kernels: bool) -> tuple[OpTime, ...]:
    """Of a KernelStatsDb, or of a TfStatsDatabase its table with idle time; the largest."""
    if are_kernels:
        found = [_kernel(buffer, each) for each in _messages(buffer, top, 1)]
    else:
        tables = next(_messages(buffer, top, 4), None)
        found = [] if tables is None else [_op(buffer, each) for each in _messages(buffer, tables, 1)]
    return tuple(sorted(found, key=lambda op: -op.self_us)[:MOST_OPS])


def _kernel(buffer: Buffer, fields: Fields) -> OpTime:
    return OpTime(
        name=_string(buffer, fields, 1) or "",
        type=_string(buffer, fields, 12) or "",
        on_device=True,
        count=int(fields.numbers(13, 1)[0]),
        self_us=float(fields.numbers(7, 1)[0]) / 1e3,
        tensor_cores=bool(fields.numbers(10, 1)[0]),
        eligible=bool(fields.numbers(11, 1)[0]),
    )


def _op(buffer: Buffer, fields: Fields) -> OpTime:
    return OpTime(
        name=_string(buffer, fields, 4) or "",
        type=_string(buffer, fields, 3) or "",
        on_device=_string(buffer, fields, 2) == "Device",
        count=int(fields.numbers(5, 1)[0]),
        self_us=_double(fields, 8) or 0.0,
    )


def _messages(buffer: Buffer, fields: Fields, number: int) -> Iterator[Fields]:
    found = fields.of(number, BYTES)
    for start, length in zip(found.start.tolist(), found.value.tolist(), strict=True):
        yield buffer.fields_of(start, start + length)


def _packed_messages(buffer: Buffer, fields: Fields, number: int) -> Iterator[tuple[str, Fields]]:
    """Messages inside `google.protobuf.Any`: the name of their type, and their fields."""
    for packed in _messages(buffer, fields, number):
        for inner in _messages(buffer, packed, 2):
            yield _string(buffer, packed, 1) or "", inner


def _double(fields: Fields, number: int) -> float | None:
    found = fields.of(number, EIGHT)
    return float(found.value[-1:].view(np.float64)[0]) if len(found.value) else None


def _string(buffer: Buffer, fields: Fields, number: int) -> str | None:
    found = fields.of(number, BYTES)
    if not len(found.start):
        return None
    return buffer.text(int(found.start[-1]), int(found.start[-1] + found.value[-1])) or None


# -- JSON --------------------------------------------------------------------------------------------------------------


class _Cell(msgspec.Struct):
    v: float | str | bool | None = None


class _Row(msgspec.Struct):
    c: list[_Cell | None] = []


class _Column(msgspec.Struct):
    id: str = ""


class _Table(msgspec.Struct):
    cols: list[_Column] = []
    rows: list[_Row] = []
    p: dict[str, msgspec.Raw] = {}


def _with_tables(figures: XprofFigures, content: bytes) -> XprofFigures:
    """Of the data tables that XProf's pages are drawn from: one, or a list."""
    for table in msgspec.json.decode(content, type=list[_Table] | _Table, strict=False) if content else ():
        figures = _with_table(figures, table)
    return figures


def _with_table(figures: XprofFigures, table: _Table) -> XprofFigures:
    columns = {
        position: JSON_COLUMNS[column.id] for position, column in enumerate(table.cols) if column.id in JSON_COLUMNS
    }
    if "compute" not in columns.values():
        return figures
    steps: list[tuple[float, dict[str, float]]] = []
    for row in table.rows:
        parts = dict.fromkeys(columns.values(), 0.0)
        for position, part in columns.items():
            cell = row.c[position] if position < len(row.c) else None
            if cell is not None and isinstance(cell.v, float | int):
                parts[part] += max(0.0, float(cell.v))
        steps.append((sum(parts.values()), parts))
    return (
        figures
        if len(figures.step_ms)
        else _with_steps(figures, [each for each in steps if each[0] > 0 and _sound([each[0]])])
    )
