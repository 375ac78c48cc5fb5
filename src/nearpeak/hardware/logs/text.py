"""The text of a log: whatever wrote it, shell redirects of Windows included."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from nearpeak.errors import DataError

__all__ = ["MOST_BYTES", "decode", "read_lines", "to_lines"]

MOST_BYTES = 2 * 2**30
"""A log is held in memory as text; a day of eight devices at 1 Hz is some 100 MB."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Escape sequences of terminals: colours, titles, cursor moves.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def read_lines(path: Path) -> list[str]:
    """The lines of a file, without their ends."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DataError(f"{path}: {size} bytes; a log has at most {MOST_BYTES}. Split it, for instance by day.")
        return to_lines(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from None


def to_lines(data: bytes) -> list[str]:
    """Lines of text in any encoding that is met, with any line ends, without colours."""
    text = decode(data)
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if _CONTROL.search(text):
        text = _CONTROL.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def decode(data: bytes) -> str:
    """By its byte order mark, by the zeros of UTF-16, as UTF-8, else as Windows' Western code page."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    head = data[:4096]
    if head and head.count(0) > len(head) // 4:  # UTF-16 without a mark: every other byte of ASCII is zero
        return data.decode("utf-16-le" if head[1::2].count(0) >= head[::2].count(0) else "utf-16-be", errors="replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")
