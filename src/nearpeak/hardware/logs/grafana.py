"""Grafana's CSV: a time and a column a series, named by its legend; the panel's title is in the file's name."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from nearpeak.hardware.logs.parts import Parts
from nearpeak.hardware.logs.prometheus import Series, add_series, parse_labels
from nearpeak.hardware.logs.times import parse_time

__all__ = ["take_grafana"]

_LEGEND = re.compile(r"^([A-Za-z_:][\w:]*)?\s*(\{.*\})$")
_BARE = re.compile(r"^(?:DCGM_FI_|nvidia_smi_|nearpeak_)\w+$")
_DEVICE = re.compile(r"(?:gpu|device|card|nvidia)\s*#?\s*(\d{1,3})\b", re.IGNORECASE)
_TITLES = (
    # What panels of DCGM dashboards are called.
    (r"tensor", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    (r"framebuffer mem.* used|memory used|fb used|vram", "DCGM_FI_DEV_FB_USED"),
    (r"mem.*(?:copy|util)", "DCGM_FI_DEV_MEM_COPY_UTIL"),
    (r"power", "DCGM_FI_DEV_POWER_USAGE"),
    (r"temp", "DCGM_FI_DEV_GPU_TEMP"),
    (r"sm clock", "DCGM_FI_DEV_SM_CLOCK"),
    (r"gpu util|utili[sz]ation", "DCGM_FI_DEV_GPU_UTIL"),
)
_TIME_NAMES = ("time", "timestamp", "date", "datetime")


def take_grafana(lines: list[str], source: str, parts: Parts) -> bool:
    """Read a file that is such a CSV as a whole."""
    body = [line for line in lines if line.strip()]
    delimiter = None
    if body and re.match(r"^sep=.$", body[0].strip()):
        delimiter = body[0].strip()[-1]
        body = body[1:]
    if len(body) < 2:
        return False
    delimiter = delimiter or max(",;\t", key=body[0].count)
    header = [cell.strip() for cell in next(csv.reader([body[0]], delimiter=delimiter))]
    if not header or header[0].strip('"').lower() not in _TIME_NAMES or parse_time(_first(body[1], delimiter)) is None:
        return False
    rows = list(csv.reader(body[1:], delimiter=delimiter))
    if [name.lower() for name in header[:3]] == ["time", "series", "value"]:
        header, rows = header, [row for row in rows if len(row) == 3]
        series = _from_long(rows, source)
    else:
        series = _from_wide(header, rows, source)
    if series is None:
        return False
    add_series(series, "Grafana", parts)
    return bool(parts.drafts)


def _first(line: str, delimiter: str) -> str:
    return next(csv.reader([line], delimiter=delimiter))[0]


def _from_wide(header: list[str], rows: list[list[str]], source: str) -> list[Series] | None:
    labels = [_labels(name, source) for name in header[1:]]
    if not any(labels):
        return None
    series: list[Series] = []
    for column, found in enumerate(labels, start=1):
        samples = [
            (at_ns, row[column])
            for row in rows
            if len(row) > column and row[column].strip() and (at_ns := parse_time(row[0])) is not None
        ]
        series.append((found or {"__name__": header[column]}, samples))
    return series


def _from_long(rows: list[list[str]], source: str) -> list[Series] | None:
    series: dict[str, list[tuple[int, str]]] = {}
    for time, name, value in rows:
        at_ns = parse_time(time)
        if at_ns is not None and value.strip():
            series.setdefault(name, []).append((at_ns, value))
    named = [(_labels(name, source), samples) for name, samples in series.items()]
    if not any(labels for labels, _ in named):
        return None
    return [(labels or {"__name__": name}, samples) for (labels, samples), name in zip(named, series, strict=True)]


def _labels(legend: str, source: str) -> dict[str, str] | None:
    """Of a series by its legend; where that names only the device, the panel's title tells the metric."""
    if match := _LEGEND.match(legend):
        labels = parse_labels(match[2])
        name = match[1] or labels.get("__name__") or _by_title(source)
        return {**labels, "__name__": name} if name else None
    if _BARE.match(legend):
        return {"__name__": legend, "gpu": "0"}
    device, title = _DEVICE.search(legend), _by_title(legend) or _by_title(source)
    return {"__name__": title, "gpu": device[1]} if device and title else None


def _by_title(text: str) -> str | None:
    title = Path(text).name.lower().replace("_", " ")
    return next((metric for pattern, metric in _TITLES if re.search(pattern, title)), None)
