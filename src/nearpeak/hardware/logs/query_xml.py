"""`nvidia-smi -q -x` of all schema versions, one document or many in a row, also where the last was cut."""

from __future__ import annotations

from xml.etree import ElementTree

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.parts import LogEvent, Parts, process_use
from nearpeak.hardware.logs.times import parse_time

__all__ = ["take_xml"]

_ROOT, _END = "<nvidia_smi_log", "</nvidia_smi_log>"
_SPECIAL = ("processes", "compute_processes", "accounted_processes", "mig_devices", "supported_clocks")


def take_xml(lines: list[str], start: int, parts: Parts) -> int:
    """Read one document."""
    first = lines[start].lstrip()
    if not first.startswith(("<?xml", "<!DOCTYPE nvidia_smi_log", _ROOT)):
        return start
    begin = next((i for i in range(start, min(start + 2000, len(lines))) if _ROOT in lines[i].split("<!")[0]), None)
    if begin is None:  # another program's XML, or a head without a body
        return start
    end = next((i for i in range(begin, len(lines)) if _END in lines[i] or (i > begin and "<?xml" in lines[i])), None)
    whole = end is not None and _END in lines[end]
    stop = len(lines) if end is None else end + whole
    _read_document(lines[begin:stop], begin + 1, parts)
    return stop


def _read_document(lines: list[str], first_line: int, parts: Parts) -> None:
    """Devices whose elements are whole are read, also from a document that is cut."""
    text = "\n".join(lines)
    text = text[text.find(_ROOT) :]
    parser = ElementTree.XMLPullParser(events=("end",))
    fault = None
    found: list[ElementTree.Element] = []
    common: list[tuple[str, str]] = []
    try:
        parser.feed(text)
    except ElementTree.ParseError as error:
        fault = str(error)
    try:
        for event in parser.read_events():
            element = event[-1]
            if not isinstance(element, ElementTree.Element):
                continue
            if element.tag == "gpu":
                found.append(element)
            elif element.tag in ("timestamp", "driver_version", "cuda_version", "attached_gpus") and not found:
                common.append((element.tag, (element.text or "").strip()))
    except ElementTree.ParseError as error:
        fault = str(error)
    if fault is not None or not text.rstrip().endswith(_END):
        values = {"text": fault or "the document ends before its end"}
        parts.events.append(LogEvent(kind="cut_line", line=first_line + len(lines) - 1, values=values))
    for number, element in enumerate(found):
        _Device(element, dict(common), number, first_line, parts).read()


class _Device:
    """Reads one `<gpu>`."""

    def __init__(self, element: ElementTree.Element, common: dict[str, str], number: int, line: int, parts: Parts):
        self._element, self._number, self._line, self._parts = element, number, line, parts
        self._at_ns = parse_time(common.pop("timestamp", ""))
        self._common = common

    def read(self) -> None:
        """The card, then its MIG instances."""
        card = Draft("nvidia-smi -q -x", at_ns=self._at_ns)
        if "id" in self._element.attrib:
            card.put("pci.bus_id", self._element.attrib["id"])
        for name, value in self._common.items():
            card.put(name, value)
        for child in self._element:
            if child.tag not in _SPECIAL:
                _put_all(card, child, "")
        self._read_processes(card)
        self._read_clocks(card)
        self._parts.add(card)
        self._read_instances(card)
        self._read_accounted()

    def _read_processes(self, card: Draft) -> None:
        listed = self._element.find("processes")
        if listed is None:
            listed = self._element.find("compute_processes")  # until schema v5
        if listed is None:
            return
        entries = listed.findall("process_info")
        text = (listed.text or "").strip()
        if text and text.lower() != "none" and not entries:  # N/A: the driver does not say
            card.put("processes", text)
            return
        card.processes = []
        for entry in entries:
            self._read_process(card, {child.tag: (child.text or "").strip() for child in entry})

    def _read_process(self, card: Draft, values: dict[str, str]) -> None:
        pid = values.pop("pid", "")
        use = process_use(
            pid,
            kind=values.pop("type", ""),
            name=values.pop("process_name", None),
            memory=values.pop("used_memory", None),
            instances=(values.pop("gpu_instance_id", None), values.pop("compute_instance_id", None)),
        )
        if use is not None and card.processes is not None:
            card.processes.append(use)
        for name, value in values.items():
            card.put(f"process {pid} {name}", value)

    def _read_clocks(self, card: Draft) -> None:
        """A list of graphics clocks for each memory clock."""
        listed = self._element.find("supported_clocks")
        if listed is None:
            return
        for entry in listed.findall("supported_mem_clock"):
            memory = (entry.findtext("value") or "").strip()
            clocks = [(child.text or "").strip() for child in entry.findall("supported_graphics_clock")]
            card.other[f"supported_clocks.{memory}"] = ", ".join(clocks)[:32_000]
        if not len(listed) and (listed.text or "").strip():
            card.put("supported_clocks", listed.text or "")

    def _read_instances(self, card: Draft) -> None:
        listed = self._element.find("mig_devices")
        if listed is None:
            return
        if not len(listed) and (listed.text or "").strip().lower() not in ("", "none"):
            card.put("mig_devices", listed.text or "")
        for entry in listed.findall("mig_device"):
            draft = Draft("nvidia-smi -q -x", at_ns=self._at_ns, device=dict(card.device))
            draft.device.pop("multiprocessors", None)
            for child in entry:
                text = (child.text or "").strip()
                if child.tag == "index" and text.isdecimal() and len(text) < 6:
                    draft.mig = int(text)
                else:
                    _put_all(draft, child, "")
            self._parts.add(draft)

    def _read_accounted(self) -> None:
        listed = self._element.find("accounted_processes")
        for entry in () if listed is None else listed.findall("accounted_process_info"):
            values = {child.tag: (child.text or "").strip() for child in entry}
            self._parts.events.append(
                LogEvent(kind="accounted_process", line=self._line, at_ns=self._at_ns, values=values)
            )


def _put_all(draft: Draft, element: ElementTree.Element, above: str) -> None:
    """Every leaf below, by its path; depth is bounded by what a parser takes."""
    stack = [(element, above)]
    while stack:
        current, path = stack.pop()
        name = f"{path}.{current.tag}" if path else current.tag
        text = (current.text or "").strip()
        if text or not len(current):
            draft.put(name, text)
        stack.extend((child, name) for child in reversed(current))
