"""`nvidia-smi -q`: sections by indentation, one document a round."""

from __future__ import annotations

import re

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.names import normalised
from nearpeak.hardware.logs.parts import Parts, process_use
from nearpeak.hardware.logs.times import parse_time

__all__ = ["take_query"]

_TITLE = re.compile(r"^=+\s*NVSMI LOG\s*=+$")
_DEVICE = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")
_KEY = re.compile(r"^(\s*)(\S.*?)\s*(?:\s:(?:\s(.*)|$))?$")
_END = ("####", "<?xml", "<nvidia_smi_log", "+---")
_BLANKS = 6
"""So many empty lines in a row, and whatever follows is no part of the document."""


def take_query(lines: list[str], start: int, parts: Parts) -> int:
    """Read one document, from its title to the next."""
    if "NVSMI LOG" not in lines[start] or not _TITLE.match(lines[start].strip()):
        return start
    document = _Document(parts)
    position, blank = start + 1, 0
    while position < len(lines):
        line = lines[position]
        blank = 0 if line.strip() else blank + 1
        if line.startswith(_END) or _TITLE.match(line.strip()) or blank > _BLANKS:
            break
        if line.strip() and not document.take(line.rstrip()):
            break
        position += 1
    document.finish()
    return position


class _Document:
    """Reads the lines of one document."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._common: list[tuple[str, str]] = []
        self._at_ns: int | None = None
        self._card: Draft | None = None
        self._draft: Draft | None = None
        self._drafts: list[Draft] = []
        self._path: list[tuple[int, str]] = []
        self._process: dict[str, str] = {}

    def take(self, line: str) -> bool:
        """One line; False where the document is over."""
        device = _DEVICE.match(line.strip())
        if device is not None and not line[0].isspace():
            self._begin(device[1])
            return True
        match = _KEY.match(line)
        if match is None:
            return False
        indent, key, value = len(match[1].expandtabs(4)), match[2], match[3]
        self._path = [(depth, name) for depth, name in self._path if depth < indent]
        if indent == 0 and value is None and " : " not in line:
            return False  # another program's output, or an error message
        if value is None:
            self._open_section(indent, key)
        else:
            self._take_value(indent, key, value.strip())
        return True

    def _begin(self, bus_id: str) -> None:
        self._close_process()
        self._card = Draft("nvidia-smi -q", at_ns=self._at_ns)
        self._card.put("pci.bus_id", bus_id)
        for name, value in self._common:
            self._card.put(name, value)
        self._draft, self._path = self._card, []
        self._drafts.append(self._card)

    def _open_section(self, indent: int, key: str) -> None:
        if _plain(key) == "mig_device" and self._card is not None:
            self._draft = Draft("nvidia-smi -q", at_ns=self._at_ns, device=dict(self._card.device))
            self._draft.device.pop("multiprocessors", None)
            self._drafts.append(self._draft)
        elif not self._path or all("mig_device" not in name for _, name in self._path):
            self._draft = self._card
        self._path.append((indent, _plain(key)))

    def _take_value(self, indent: int, key: str, value: str) -> None:
        names = [name for _, name in self._path if name != "mig_device"]
        in_mig = len(names) != len(self._path)
        if not in_mig:
            self._draft = self._card
        plain = _plain(key)
        if self._draft is None or self._card is None:
            self._take_common(key, value)
        elif names[:1] in (["processes"], ["compute_processes"]):
            self._take_process(plain, value)
        elif in_mig and plain == "index" and value.isdecimal() and len(value) < 6:
            self._draft.mig = int(value)
        elif plain == "gpu_uuid":
            self._draft.put("uuid", value)
        elif plain == "minor_number" and value.isdecimal() and len(value) < 6:
            self._draft.put("minor_number", value)
        elif plain in ("processes", "compute_processes"):
            if value.lower() == "none":
                self._draft.processes = []
            else:
                self._draft.put("processes", value)
        else:
            self._draft.put(".".join([*names, plain]), value)
        self._path.append((indent, plain))

    def _take_common(self, key: str, value: str) -> None:
        """Above the first device."""
        if _plain(key) == "timestamp":
            self._at_ns = parse_time(value)
            if self._at_ns is not None:
                return
        self._common.append((key, value))

    def _take_process(self, plain: str, value: str) -> None:
        """A process begins with its instances where they are told, else with its number."""
        if plain in self._process or (plain == "gpu_instance_id" and "process_id" in self._process):
            self._close_process()
        self._process[plain] = value

    def _close_process(self) -> None:
        values, self._process = self._process, {}
        if not values or self._card is None:
            return
        use = process_use(
            values.pop("process_id", ""),
            kind=values.pop("type", ""),
            name=values.pop("name", None),
            memory=values.pop("used_gpu_memory", None),
            instances=(values.pop("gpu_instance_id", None), values.pop("compute_instance_id", None)),
        )
        if self._card.processes is None:
            self._card.processes = []
        if use is not None:
            self._card.processes.append(use)
        for name, value in values.items():
            self._card.put(f"process.{name}", value)

    def finish(self) -> None:
        """Hand over what was read."""
        self._close_process()
        for draft in self._drafts:
            self._parts.add(draft)
        if not self._drafts:
            self._parts.context.update(self._common)


def _plain(key: str) -> str:
    """A point inside a key (`T.Limit`) parts no levels."""
    return normalised(key.replace(".", "_"))
