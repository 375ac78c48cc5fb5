"""What the parts of a log are read into, before its devices and times are sorted out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nearpeak.hardware.logs.draft import Draft
from nearpeak.hardware.logs.values import parse_cell
from nearpeak.hardware.reading import ProcessUse

__all__ = ["LogEvent", "Parts", "TextBlock", "process_use"]

_KINDS: dict[str, Literal["compute", "graphics", "compute+graphics"]] = {
    "c": "compute",
    "g": "graphics",
    "c+g": "compute+graphics",
    "m": "compute",  # a client of MPS
    "m+c": "compute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """Something that a log tells and that is no state of a device: a message, a finished process, a retired page."""

    kind: str
    """``message``, ``accounted_process``, ``retired_page``, ``supported_clocks``, ``cut_line``, ``clock_change``,
    ``gap``."""
    line: int
    """In the file, from 1."""
    at_ns: int | None = None
    device: int | None = None
    values: dict[str, str] = field(default_factory=dict)
    """By the log's own names."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Lines that hold no readings: help texts, topologies, lists of symbols. Kept, not understood."""

    title: str
    first_line: int
    lines: tuple[str, ...]


@dataclass(slots=True)
class Parts:
    """Filled while a file is scanned."""

    drafts: list[Draft] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    texts: list[TextBlock] = field(default_factory=list)
    context: dict[str, str] = field(default_factory=dict)
    """What the file says about itself: versions, host, load."""
    listed: list[dict[str, Any]] = field(default_factory=list)
    """Devices that are listed without a reading, as fields of `Device`; `other` is merged."""
    notes: list[str] = field(default_factory=list)
    """What had to be assumed, as sentences."""
    command: str | None = None
    """The command whose output follows, where the file names it."""
    title: str = ""
    stated_ns: int | None = None
    """The last moment that the file named."""
    formats: dict[str, int] = field(default_factory=dict)
    """Format → how many readings."""

    def add(self, draft: Draft) -> None:
        """One device at one moment."""
        self.drafts.append(draft)
        self.formats[draft.source] = self.formats.get(draft.source, 0) + 1
        if draft.at_ns is not None:
            self.stated_ns = draft.at_ns

    def note(self, sentence: str) -> None:
        """Once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def process_use(
    pid: str,
    *,
    kind: str = "",
    name: str | None = None,
    memory: str | None = None,
    memory_unit: str | None = None,
    shares: dict[str, str] | None = None,
    instances: tuple[str | None, str | None] = (None, None),
) -> ProcessUse | None:
    """One process on a device, from its cells; None where the number is none."""
    if not pid.strip().isdecimal() or len(pid.strip()) > 10:
        return None
    used = parse_cell(memory, memory_unit or "MiB").si if memory is not None else None
    percents = {figure: parse_cell(text).number for figure, text in (shares or {}).items()}
    return ProcessUse(
        pid=int(pid),
        kind=_KINDS.get(kind.strip().lower()),
        memory_bytes=None if used is None else round(used),
        name=name.strip() if name is not None and parse_cell(name).missing is None else None,
        gpu_instance=_to_number(instances[0]),
        compute_instance=_to_number(instances[1]),
        **percents,  # type: ignore[arg-type]
    )


def _to_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() and len(text) < 9 else None
