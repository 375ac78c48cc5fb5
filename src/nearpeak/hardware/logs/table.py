"""The table that plain `nvidia-smi` prints, of all driver versions: boxes of `|` and `+`."""

from __future__ import annotations

import re

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.names import normalised
from nearpeak.hardware.logs.parts import Parts, process_use

__all__ = ["take_table"]

_TITLE = re.compile(r"NVIDIA-SMI\s+(\S+)")
_VERSION = re.compile(r"(\w+(?: \w+)*) Version:\s*(\S+)")
_FIRST = re.compile(r"^(\d{1,3})\s+(\S.*?)\s+(\S+)$")
_SECOND = re.compile(r"^(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*/\s*(\S.*)$")
_BUS = re.compile(r"^([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*(\S+)?$")
_INSTANCE = re.compile(r"^(\d{1,3})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,3})$")
_PROCESS = re.compile(
    r"^(\d{1,3})\s+(?:(N/A|\d+)\s+(N/A|\d+)\s+)?(\d+)\s+(C\+G|M\+C|C|G|M)\s+(\S.*?)\s+(\d+\s*[KMG]i?B|N/A|\[?\S+\]?)$"
)
_ENGINES = ("CE", "ENC", "DEC", "OFA", "JPG")


def take_table(lines: list[str], start: int, parts: Parts) -> int:
    """Read one table with its boxes of MIG instances and processes."""
    if not lines[start].startswith("+--") or start + 1 >= len(lines) or "NVIDIA-SMI" not in lines[start + 1]:
        return start
    table = _Table(parts)
    position, blank = start, 0
    while position < len(lines):
        line = lines[position].strip()
        blank = 0 if line else blank + 1
        if blank > 1 or (line and line[0] not in "+|") or (position > start and "NVIDIA-SMI" in line and table.begun):
            break
        if line.startswith("|"):
            table.take(line)
        else:
            table.pause()
        position += 1
    table.finish()
    return position


class _Table:
    """Reads the lines of one table."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._common: dict[str, str] = {}
        self._cards: dict[int, Draft] = {}
        self._card: Draft | None = None
        self._instance: Draft | None = None
        self._instances: list[Draft] = []
        self._row = 0
        self._box = "devices"
        self._states = "persistence"

    @property
    def begun(self) -> bool:
        """Whether the head with the versions was read."""
        return bool(self._common)

    def take(self, line: str) -> None:
        """One line between bars."""
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if match := _TITLE.search(line):
            versions = {f"{name} version": number for name, number in _VERSION.findall(line)}
            self._common = {"nvidia_smi_version": match[1], **{normalised(k): v for k, v in versions.items()}}
        elif "Processes:" in line or line.startswith(("| MIG devices", "|===")):
            self._open(line)
        elif "Persistence-M" in line:
            self._states = "persistence"
        elif "Driver-Model" in line or "TCC/WDDM" in line:
            self._states = "driver_model"
        elif self._box == "processes":
            self._take_process(line.strip("|").strip())
        elif self._box == "instances":
            self._take_instance(cells)
        elif len(cells) == 3:
            self._take_device(cells)

    def _open(self, line: str) -> None:
        if "Processes:" in line:
            self._box = "processes"
        elif "MIG devices" in line:
            self._box = "instances"
        self.pause()

    def pause(self) -> None:
        """A line across: the next row is the first of a device."""
        self._row, self._instance = 0, None

    def _take_device(self, cells: list[str]) -> None:
        self._row += 1
        first = _FIRST.match(cells[0])
        if self._row == 1 and first is not None:
            self._begin(first, cells)
        elif self._card is not None and self._row == 2:
            self._take_figures(cells)
        elif self._card is not None and self._row == 3 and cells[2]:
            self._card.put("mig.mode.current", cells[2])

    def _begin(self, first: re.Match[str], cells: list[str]) -> None:
        card = self._card = Draft("nvidia-smi", at_ns=self._parts.stated_ns, index=int(first[1]))
        self._cards[card.index or 0] = card
        for name, value in self._common.items():
            card.put(name, value)
        card.put("table.name" if first[2].endswith("...") else "name", first[2])
        card.put("persistence_mode" if self._states == "persistence" else "driver_model.current", first[3])
        bus = _BUS.match(cells[1])
        card.put("pci.bus_id", bus[1] if bus else cells[1])
        if bus and bus[2]:
            card.put("display_active", bus[2])
        # The count where ECC is on; on or off where there is MIG.
        card.put("table.ecc_uncorrected" if cells[2].isdecimal() else "table.volatile_uncorrected_ecc", cells[2])

    def _take_figures(self, cells: list[str]) -> None:
        card = self._card
        if card is None:
            return
        left = _SECOND.match(cells[0])
        if left is not None:
            for name, value in zip(
                ("fan.speed", "temperature.gpu", "pstate", "power.draw"), left.groups(), strict=False
            ):
                card.put(name, value)
            card.put("enforced.power.limit", left[5])
        elif cells[0]:
            card.put("table.fan_temp_perf_power", cells[0])
        used, slash, total = cells[1].partition("/")
        card.put("memory.used", used.strip())
        if slash:
            card.put("memory.total", total.strip())
        busy, _, mode = cells[2].partition(" ")
        card.put("utilization.gpu", busy)
        if mode.strip():
            card.put("compute_mode", mode.strip())

    def _take_instance(self, cells: list[str]) -> None:
        match = _INSTANCE.match(cells[0])
        if match is not None and len(cells) >= 4:
            card = self._cards.get(int(match[1]))
            draft = Draft("nvidia-smi", at_ns=self._parts.stated_ns, index=int(match[1]), mig=int(match[4]))
            draft.device = {} if card is None else dict(card.device)
            draft.put("gpu_instance_id", match[2])
            draft.put("compute_instance_id", match[3])
            self._take_pair(draft, "fb_memory_usage", cells[1])
            units, *errors = cells[2].split()
            draft.put("device_attributes.shared.multiprocessor_count", units)
            for error in errors:
                draft.put("table.ecc_uncorrected", error)
            for name, count in zip(_ENGINES, cells[3].split(), strict=False):
                draft.put(f"table.{name}", count)
            self._instance = draft
            self._instances.append(draft)
        elif self._instance is not None and len(cells) >= 2 and "/" in cells[1]:
            self._take_pair(self._instance, "bar1_memory_usage", cells[1])
            self._instance = None

    def _take_pair(self, draft: Draft, name: str, cell: str) -> None:
        used, _, total = cell.partition("/")
        draft.put(f"{name}.used", used.strip())
        draft.put(f"{name}.total", total.strip())

    def _take_process(self, text: str) -> None:
        if "No running processes" in text:
            for card in self._cards.values():
                card.processes = []
            return
        match = _PROCESS.match(text)
        card = self._cards.get(int(match[1])) if match else None
        if match is None or card is None:
            return
        use = process_use(match[4], kind=match[5], name=match[6], memory=match[7], instances=(match[2], match[3]))
        if use is not None:
            card.processes = [*(card.processes or []), use]

    def finish(self) -> None:
        """Hand over what was read."""
        for draft in (*self._cards.values(), *self._instances):
            self._parts.add(draft)
        if not self._cards:
            self._parts.context.update(self._common)
