"""rocm-smi and amd-smi as JSON: an object a card, fields by their printed names."""

from __future__ import annotations

import re
from typing import Any

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.parts import Parts

__all__ = ["take_rocm"]

_CARD = re.compile(r"^card(\d{1,3})$")
_UNIT = re.compile(r"^(.*?)\s*\(([^()]+)\)$")


def take_rocm(document: Any, parts: Parts) -> bool:
    """Whether this was an answer of either tool."""
    if not isinstance(document, dict):
        return False
    cards = [(match, fields) for name, fields in document.items() if (match := _CARD.match(str(name)))]
    for match, fields in cards:
        if isinstance(fields, dict):
            _add_rocm(int(match[1]), fields, parts)
    if cards:
        system = document.get("system")
        parts.context.update({k: str(v) for k, v in system.items()} if isinstance(system, dict) else {})
        return True
    if isinstance(document.get("gpu"), int) and len(document) > 1 and not isinstance(document["gpu"], bool):
        draft = Draft("amd-smi", index=document["gpu"] % 10_000, step=_round(document["gpu"], "amd-smi", parts))
        _put_nested(draft, document, "")
        draft.device["vendor"] = "amd"
        parts.add(draft)
        return True
    return False


def _add_rocm(index: int, fields: dict[str, Any], parts: Parts) -> None:
    draft = Draft("rocm-smi", index=index, step=_round(index, "rocm-smi", parts))
    for label, value in fields.items():
        match = _UNIT.match(str(label))
        name, unit = (match[1], match[2]) if match and match[2] in ("%", "W", "C", "B", "MHz") else (str(label), None)
        text = str(value)
        if re.fullmatch(r"\(\d+[MG]hz\)", text, re.IGNORECASE):  # clocks stand in brackets
            text = text.strip("()")
        draft.put(re.sub(r"\s*\(Sensor \w+\)", lambda found: f" {found[0].strip(' ()')}", name), text, unit)
    draft.device["vendor"] = "amd"
    parts.add(draft)


def _round(index: int, source: str, parts: Parts) -> int:
    last = next((each for each in reversed(parts.drafts) if each.source == source), None)
    if last is None:
        return 0
    return last.step + (last.index is not None and index <= last.index)


def _put_nested(draft: Draft, fields: dict[str, Any], above: str) -> None:
    """Fields of fields by their path; `{"value": 3, "unit": "W"}` is one figure."""
    stack: list[tuple[str, Any]] = [(above, fields)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict) and set(value) == {"value", "unit"}:
            draft.put(path, str(value["value"]), str(value["unit"]) or None)
        elif isinstance(value, dict):
            stack.extend((f"{path}.{name}" if path else str(name), inner) for name, inner in value.items())
        elif path != "gpu":
            draft.put(path, str(value))
