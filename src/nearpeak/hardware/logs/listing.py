"""What stands between readings: lists of devices and links, heads of captures, messages of a driver in trouble."""

from __future__ import annotations

import re
from typing import Any

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.parts import LogEvent, Parts
from nearpeak.hardware.logs.times import find_date_time, parse_time

__all__ = ["take_context", "take_list", "take_message", "take_time"]

_DEVICE = re.compile(r"^GPU (\d{1,3}): (.+?) \(UUID: ([^)]+)\)\s*$")
_INSTANCE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d{1,3}): \(UUID: ([^)]+)\)\s*$")
_LINK = re.compile(r"^\s+Link (\d{1,2}): (.+?)\s*$")
_CONTEXT = re.compile(r"^([A-Za-z][\w. -]{1,40}?)\s*:\s+(\S.*)$")
_COMMAND = re.compile(r"^#?\s*[$>]\s*(nvidia-smi\b.*|rocm-smi\b.*|amd-smi\b.*)$")
_SECTION = re.compile(r"^#\s+(\S.* :: .*)$")
_LOST = re.compile(
    r"(?:unable to determine the device handle for gpu\s*(?P<bus>[0-9A-Fa-f:.]+)?|gpu is lost|fallen off the bus)",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"NVIDIA-SMI has failed|Failed to initialize NVML|No devices were found|Driver/library version mismatch|"
    r"^ERROR: |^WARNING: |infoROM is corrupted|NVRM: |\bXid\b|couldn't communicate with the NVIDIA driver",
    re.IGNORECASE,
)


def take_time(lines: list[str], start: int, parts: Parts) -> int:
    """A line that is nothing but a date with time: of the table below it."""
    moment = find_date_time(lines[start])
    if moment is None:
        return start
    parts.stated_ns = moment
    return start + 1


def take_message(lines: list[str], start: int, parts: Parts) -> int:
    """What a driver in trouble prints instead of readings."""
    line = lines[start].strip()
    lost = _LOST.search(line)
    if lost is None and not _TROUBLE.search(line):
        return start
    parts.events.append(LogEvent(kind="message", line=start + 1, at_ns=parts.stated_ns, values={"text": line[:2000]}))
    bus = lost.groupdict().get("bus") if lost is not None else None
    if bus:
        draft = Draft("message", at_ns=parts.stated_ns, state="lost", fault=line[:500])
        draft.put("pci.bus_id", bus.rstrip(".:"))
        parts.add(draft)
    return start + 1


def take_list(lines: list[str], start: int, parts: Parts) -> int:
    """`nvidia-smi -L` and `nvidia-smi nvlink -s`: devices with their instances or links."""
    position = start
    device: dict[str, Any] | None = None
    while position < len(lines):
        line = lines[position]
        if match := _DEVICE.match(line):
            device = {"index": int(match[1]), "name": match[2], "uuid": match[3], "other": {}}
            parts.listed.append(device)
        elif device is None:
            break
        elif match := _INSTANCE.match(line):
            parts.listed.append({"index": device["index"], "mig": int(match[2])} | _instance_fields(match))
        elif match := _LINK.match(line):
            device["other"][f"nvlink link {match[1]}"] = match[2]
        elif re.search(r"nvlink", line, re.IGNORECASE) and ":" not in line.split("NVML")[0]:
            device["other"]["nvlink"] = line.strip()[:300]
        else:
            break
        position += 1
    return position


def _instance_fields(match: re.Match[str]) -> dict[str, Any]:
    return {"mig_profile": match[1], "uuid": match[3], "other": {}}


def take_context(lines: list[str], start: int, parts: Parts) -> int:
    """The head of a capture, names of its sections, the commands whose output it holds."""
    line = lines[start]
    if match := _COMMAND.match(line):
        parts.command = match[1]
        return start + 1
    if match := _SECTION.match(line):
        parts.title, parts.command = match[1], None
        return start + 1
    if line.startswith("###"):
        return start + 1
    if not parts.drafts and not parts.listed and (match := _CONTEXT.match(line)) and " - " not in match[1]:
        parts.context.setdefault(match[1], match[2])
        moment = parse_time(match[2])
        if moment is not None:
            parts.stated_ns = moment
        return start + 1
    return start
