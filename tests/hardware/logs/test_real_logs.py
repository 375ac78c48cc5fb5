"""Logs of real machines, where they are at hand: every field of each is found again in what was read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nearpeak.hardware.logs.log import DeviceLog, read_log
from nearpeak.hardware.logs.names import DEVICE_NAMES, MASK_NAMES, normalised, place_of, reason_of
from nearpeak.hardware.reading import Reading

CASES = Path(__file__).parents[4] / "shared" / "cases" / "monitor"
FILES = sorted(path for path in CASES.rglob("*") if path.is_file()) if CASES.is_dir() else []
ABSENT = re.compile(
    r"^\[?(N/A|-|--|Not Supported|Requested functionality has been deprecated|Unknown Error|GPU requires reset|"
    r"Insufficient Permissions|Not available in WDDM driver model|ERR!|Unknown Error|GPU is lost|)\]?$"
)
EXPLAINED: dict[str, str] = {
    # Field → why nothing of it is kept.
}

pytestmark = pytest.mark.skipif(
    not FILES, reason=f"{CASES} is not there: logs of real machines stay out of the project"
)


def fields_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, name and value of every field, found without the code under test."""
    if text.lstrip().startswith("<?xml"):
        yield from xml_fields(text)
        return
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"=+NVSMI LOG=+", line):
            yield from query_fields(lines, number)
        elif line.startswith("timestamp, "):
            yield from csv_fields(lines, number)
        elif re.match(r"# gpu\s", line):
            yield from monitor_fields(lines, number)
        elif re.match(r"\|\s+\d+\s+\S.*\s(On|Off|N/A|WDDM|TCC|MCDM)\s+\|.*\|.*\|", line):
            yield from table_fields(line, lines[number + 1])
        elif match := re.match(r"\s+Link (\d+): (\S+ \S+)", line):
            yield "device", f"nvlink link {match[1]}", match[2]
        elif match := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line):
            yield "device", "mig_profile", match[1]
            yield "device", "uuid", match[2]


def xml_fields(text: str) -> Iterator[tuple[str, str, str]]:
    root = ElementTree.fromstring(text)
    for gpu in root.iter("gpu"):
        yield from leaves(gpu, "")
    for child in root:
        if child.tag not in ("gpu", "timestamp"):
            yield "field", child.tag, (child.text or "").strip()


def leaves(element: ElementTree.Element, path: str) -> Iterator[tuple[str, str, str]]:
    for child in element:
        name = f"{path}.{child.tag}" if path else child.tag
        value = (child.text or "").strip()
        if len(child):
            yield from leaves(child, name)
        elif name.startswith("processes.process_info."):
            yield "process", child.tag, value
        elif name.startswith("supported_clocks."):
            yield "text", name, value
        elif not (name in ("processes", "accounted_processes", "mig_devices") and value in ("", "None")):
            yield "field", re.sub(r"^mig_devices\.mig_device\.", "", name), value


def query_fields(lines: list[str], start: int) -> Iterator[tuple[str, str, str]]:
    path: list[tuple[int, str]] = []
    for line in lines[start + 1 :]:
        if line.startswith(("####", "+--")):
            return
        if not line.strip() or line.startswith(("GPU 0", "Timestamp")):
            continue
        depth = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(" : ")
        key = re.sub(r"[^a-z0-9]+", "_", key.strip().lower()).strip("_")
        path = [each for each in path if each[0] < depth]
        names = [name for _, name in path if name != "mig_device"]
        if depth:  # the head above the devices has no levels
            path.append((depth, key))
        if not colon or (key == "processes" and value.strip() == "None"):
            continue
        kind = "process" if names[:1] == ["processes"] else "field"
        name = "uuid" if key == "gpu_uuid" else key if kind == "process" else ".".join([*names, key])
        yield kind, name, value.strip()


def csv_fields(lines: list[str], start: int) -> Iterator[tuple[str, str, str]]:
    names = [re.sub(r"\s*\[.*\]$", "", name) for name in lines[start].split(", ")]
    kind = "field"
    if "pid" in names:
        kind = "process" if any("used" in name for name in names) else "text"
    elif "retired_pages.cause" in names:
        kind = "text"
    for line in lines[start + 1 :]:
        if not line.strip():
            return
        cells = line.split(", ")
        if len(cells) != len(names):  # a comma inside a cell: look for its pieces
            yield from (("text", "row", cell) for cell in cells[1:])
            continue
        for name, value in list(zip(names, cells, strict=True))[1:]:
            about_device = kind == "process" and name.startswith("gpu_")
            yield "index" if name == "index" else "field" if about_device else kind, name, value.strip()


def monitor_fields(lines: list[str], start: int) -> Iterator[tuple[str, str, str]]:
    names = lines[start].lstrip("# ").split()
    for line in lines[start + 2 :]:
        if not re.match(r"\s+\d+\s", line):
            return
        for name, value in zip(names, line.split(None, len(names) - 1), strict=True):
            if "pid" in names:
                yield "process", name, value.strip()
            else:
                yield "index" if name == "gpu" else "field", f"dmon.{name}", value


def table_fields(first: str, second: str) -> Iterator[tuple[str, str, str]]:
    left, middle, right = (cell.strip() for cell in second.strip("|").split("|"))
    fan, temperature, state, *powers = left.split()
    power, limit = ([*" ".join(powers).split("/"), "", ""])[:2]
    power, limit = power.strip(), limit.strip()
    yield "field", "fan.speed", fan
    yield "field", "temperature.gpu", temperature
    yield "field", "pstate", state
    yield "field", "power.draw", power
    yield "field", "enforced.power.limit", limit
    used, slash, total = middle.partition("/")
    yield "field", "memory.used", used.strip()
    if slash:
        yield "field", "memory.total", total.strip()
    yield "field", "utilization.gpu", right.split()[0]
    yield "field", "compute_mode", right.split()[1]
    yield "field", "pci.bus_id", first.split("|")[2].split()[0]


def is_kept(log: DeviceLog, kind: str, name: str, value: str) -> bool:
    """Whether this field of the file is somewhere in what was read."""
    plain = normalised(name)
    if kind == "index" or name == "index":
        return any(int(value) in (reading.device, reading.mig) for reading in log.readings)
    if kind == "device":
        return any(value in map(str, (d.uuid, d.mig_profile, *d.other.values())) for d in log.devices)
    if kind == "process":
        return is_process_kept(log, plain, value)
    if kind == "text":
        held = [*(v for event in log.events for v in event.values.values())]
        held += [use.name or "" for reading in log.readings for use in reading.processes or ()]
        held += [str(v) for reading in log.readings for v in reading.other.values()]
        held += [str(n) for reading in log.readings for n in reading.other]
        return ABSENT.match(value) is not None or any(value in text for text in held)
    return is_field_kept(log, name, plain, value)


def is_process_kept(log: DeviceLog, plain: str, value: str) -> bool:
    uses = [use for reading in log.readings for use in reading.processes or ()]
    known = {str(part) for use in uses for part in (use.pid, use.name, use.gpu_instance, use.compute_instance)}
    if ABSENT.match(value) or value in known or plain == "type":
        return True
    if plain == "gpu":
        return any(reading.device == int(value) for reading in log.readings)
    number = re.match(r"[\d.]+", value)
    figures = {f for use in uses for f in (use.memory_bytes, use.busy_percent, use.memory_busy_percent)}
    figures |= {f for use in uses for f in (use.encoder_percent, use.decoder_percent)}
    return number is not None and bool({float(number[0]), float(number[0]) * 2**20} & figures)


def is_field_kept(log: DeviceLog, name: str, plain: str, value: str) -> bool:
    place = place_of(plain)
    if plain in DEVICE_NAMES and not ABSENT.match(value):
        kept = {str(getattr(device, DEVICE_NAMES[plain])).lower() for device in log.devices}
        words = re.sub(r"0x", "", value.lower())
        as_id = f"{words[4:]}:{words[:4]}"
        as_pair = str(tuple(map(int, value.split(".")))) if re.fullmatch(r"\d+\.\d", value) else ""
        if {value.lower(), f"0000{value.lower()}", as_id, as_pair} & kept:
            return True
    if place is not None and any(holds(reading, place.figure, value) for reading in log.readings):
        return True
    if plain in MASK_NAMES or reason_of(plain):
        return any(reading.throttle_reasons is not None for reading in log.readings)
    return any(is_other(reading, name, value) for reading in log.readings)


def holds(reading: Reading, figure: str, value: str) -> bool:
    """The figure has this value, by a reckoning of its own."""
    if ABSENT.match(value):
        return reading.why_missing(figure) not in (None, "not_asked")
    found = getattr(reading, figure)
    number = re.search(r"-?\d+(\.\d+)?", value)
    if isinstance(found, bool) or found is None or number is None:
        return found is not None
    if isinstance(found, str):
        return found.startswith(value.lower()[:4])
    scale = {"W": 1, "%": 1, "C": 1, "KB/s": 1e3, "us": 1e-6, "MHz": 1e6, "MiB": 2**20, "x": 1}
    factors = [scale[unit] for unit in scale if value.endswith(unit)] or [1, 1e6, 1e3, 2**20]
    return any(abs(float(number[0]) * factor - found) <= 1e-9 * abs(found) for factor in factors)


def is_other(reading: Reading, name: str, value: str) -> bool:
    same = (
        n
        for n in reading.other
        if re.sub(r"( #\d+| \[[^\]]*\])+$", "", n).lower() == name.lower() or normalised(n) == normalised(name)
    )
    return any(str(reading.other[n]) in (value, value.strip("[]")) for n in same)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_field_is_dropped(path: Path) -> None:
    log = read_log(path)
    found = list(dict.fromkeys(fields_of(path.read_text(encoding="utf-8", errors="replace"))))
    assert len(found) > 20, "the test found next to nothing in this file"
    dropped = [field for field in found if field[1] not in EXPLAINED and not is_kept(log, *field)]
    assert not dropped, "\n".join(map(str, dropped))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_what_windows_does_to_a_file_changes_nothing(path: Path, encoding: str, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace").replace('encoding="UTF-8"', "")
    copy = tmp_path / path.name
    copy.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    log = read_log(path)
    assert read_log(copy).readings == log.readings
    assert read_log(copy).devices == log.devices
