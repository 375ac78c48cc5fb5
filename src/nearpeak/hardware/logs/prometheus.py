"""Prometheus: answers of its HTTP API as JSON, and the text that exporters print; DCGM's names and others'."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.names import normalised, place_of
from nearpeak.hardware.logs.parts import Parts, TextBlock
from nearpeak.hardware.logs.rocm import take_rocm
from nearpeak.hardware.logs.times import NS

__all__ = ["Series", "add_series", "parse_labels", "take_exposition", "take_json"]

_LABEL = re.compile(r'(\w+)\s*=~?\s*"((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+([+-]?[\d.eE+-]+|NaN|[+-]?Inf)(?:\s+(\d+))?$")
_INDEX_LABELS = ("gpu", "index", "minor_number", "gpu_id", "card", "device_index")
_HOST_LABELS = ("Hostname", "hostname", "node", "instance", "kubernetes_node", "host")
_DEVICE_LABELS = {
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "modelname": "name",
    "model_name": "name",
    "name": "name",
    "pci_bus_id": "pci_bus_id",
    "dcgm_fi_driver_version": "driver_version",
}
Series = tuple[dict[str, str], list[tuple[int, str]]]
"""Labels, `__name__` among them, and samples: Unix nanoseconds and value."""


def take_json(lines: list[str], parts: Parts) -> bool:
    """Read a file that is JSON as a whole, or a JSON document a line."""
    first = next((line.lstrip()[:1] for line in lines if line.strip()), "")
    if first not in "{[" or first == "":
        return False
    documents = _decode("\n".join(lines))
    if documents is None:
        found = [_decode(line) for line in lines if line.strip()]
        documents = [entry for each in found if each is not None for entry in each]
        if len(documents) == 0:
            return False
        cut = sum(each is None for each in found)
        if cut:
            parts.note(f"{cut} lines are no JSON and were passed over.")
    series = [entry for document in documents for entry in _series_of(document)]
    if series:
        add_series(series, "Prometheus", parts)
        return True
    return sum(take_rocm(document, parts) for document in documents) > 0


def _decode(text: str) -> list[Any] | None:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if isinstance(document, list) else [document]


def _series_of(document: Any) -> Iterable[Series]:
    """From an answer, its `data`, or its `result` alone."""
    if not isinstance(document, dict):
        return
    for name in ("data", "result", "results"):
        inner = document.get(name)
        if isinstance(inner, dict):
            yield from _series_of(inner)
        elif isinstance(inner, list):
            for entry in inner:
                yield from _series_of(entry)
    metric = document.get("metric")
    if isinstance(metric, dict):
        labels = {str(name): str(value) for name, value in metric.items()}
        values = document.get("values", [document["value"]] if "value" in document else [])
        samples = [pair for each in values if (pair := _sample(each)) is not None] if isinstance(values, list) else []
        yield labels, samples


def _sample(pair: Any) -> tuple[int, str] | None:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int | float):
        return None
    at_s = float(pair[0])
    return (round(at_s * 1000) * (NS // 1000), str(pair[1])) if 0 <= at_s < 4e9 else None


def add_series(series: Iterable[Series], source: str, parts: Parts) -> None:
    """Samples of one device and moment are one reading."""
    drafts: dict[tuple[Any, ...], Draft] = {}
    nameless = 0
    for labels, samples in series:
        name = labels.get("__name__", "")
        if not name:
            nameless += 1
            name = f"unnamed {nameless}"
        identity = _identity(labels)
        if identity["index"] is None and not identity["device"] and place_of(normalised(name)) is None:
            shown = tuple(f"{at_ns} {value}" for at_ns, value in samples)
            parts.texts.append(TextBlock(f"{name} of no device: {labels}", 1, shown))
            continue
        key = tuple(sorted((field, str(value)) for field, value in identity.items() if field != "other"))
        for at_ns, value in samples:
            draft = drafts.get((at_ns, key))
            if draft is None:
                draft = drafts[at_ns, key] = _new_draft(source, at_ns, identity)
            draft.put(name, value)
            draft.device.update(identity["device"])
    if nameless:
        parts.note(f"{nameless} series have no metric name (an expression drops it); they are kept and not understood.")
    for draft in sorted(drafts.values(), key=lambda each: each.at_ns or 0):
        parts.add(draft)


def _new_draft(source: str, at_ns: int, identity: dict[str, Any]) -> Draft:
    return Draft(
        source,
        at_ns=at_ns,
        index=identity["index"],
        mig=identity["mig"],
        host=identity["host"],
        device=dict(identity["device"]),
        other=dict(identity["other"]),
    )


def _identity(labels: dict[str, str]) -> dict[str, Any]:
    """Host, device and instance; labels that say something else are kept."""
    lowered = {name.lower(): value for name, value in labels.items()}
    index = next((labels[name] for name in _INDEX_LABELS if name in labels), "")
    if not index and (match := re.fullmatch(r"(?:nvidia|card)?(\d{1,4})", lowered.get("device", ""))):
        index = match[1]
    match = re.fullmatch(r"(?:nvidia|card|GPU )?(\d{1,4})", index)
    instance = lowered.get("gpu_i_id", "")
    device: dict[str, Any] = {field: lowered[name] for name, field in _DEVICE_LABELS.items() if lowered.get(name)}
    if instance.isdecimal():
        device["gpu_instance"] = int(instance[:6])
        device.pop("uuid", None)
    return {
        "host": next((labels[name] for name in _HOST_LABELS if labels.get(name)), None),
        "index": int(match[1]) if match else None,
        "mig": int(instance[:6]) if instance.isdecimal() else None,
        "device": device,
        "other": {f"label {name}": value for name, value in labels.items() if _is_plain(name) and value},
    }


def _is_plain(name: str) -> bool:
    used = {"__name__", "job", "device", *_INDEX_LABELS, *_HOST_LABELS}
    return name not in used and name.lower() not in _DEVICE_LABELS


def parse_labels(text: str) -> dict[str, str]:
    """`{gpu="0", UUID="GPU-…"}` → labels."""
    return {name: value.replace('\\"', '"').replace("\\\\", "\\") for name, value in _LABEL.findall(text)}


def take_exposition(lines: list[str], start: int, parts: Parts) -> int:
    """What an exporter prints: a sample a line, a moment a scrape."""
    position, found = start, []
    seen: set[str] = set()
    while position < len(lines):
        line = lines[position].strip()
        if line.startswith(("# HELP", "# TYPE", "# EOF", "# UNIT")):
            position += 1
            continue
        match = _SAMPLE.match(line)
        if match is None or (not found and "{" not in line):
            break
        series = line[: match.start(3)]
        if series in seen:  # the next scrape, appended
            break
        seen.add(series)
        at_ns = int(match[4]) * 10**6 if match[4] and len(match[4]) == 13 else None
        found.append(({"__name__": match[1], **parse_labels(match[2] or "")}, at_ns, match[3]))
        position += 1
    if not found:
        return start
    _add_scrape(found, parts)
    return position


def _add_scrape(found: list[tuple[dict[str, str], int | None, str]], parts: Parts) -> None:
    step = sum(1 for draft in parts.drafts[-1:] if draft.source == "exposition") and parts.drafts[-1].step + 1
    drafts: dict[str, Draft] = {}
    for labels, at_ns, value in found:
        identity = _identity(labels)
        if identity["index"] is None and not identity["device"]:
            continue  # of the exporter itself
        key = f"{identity['host']} {identity['index']} {identity['mig']} {identity['device'].get('uuid')}"
        draft = drafts.setdefault(key, _new_draft("exposition", at_ns or 0, identity))
        draft.at_ns, draft.step = at_ns, step
        draft.put(labels["__name__"], value)
        draft.device.update(identity["device"])
    for draft in drafts.values():
        parts.add(draft)
