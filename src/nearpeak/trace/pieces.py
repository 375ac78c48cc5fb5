"""A file as a stream of bytes, unpacked on the way, so that no file has to fit into memory.

What is broken ends the stream and is told; what came before is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from nearpeak.errors import DataError

__all__ = ["Pieces", "first_bytes"]

PLAIN_BYTES = 1 << 18
PACKED_BYTES = 1 << 14
"""Traces unpack to ten or twenty times their size: so much of it makes a piece about as large as a plain one."""
MOST_PIECE_BYTES = 1 << 18
"""A few compressed bytes may unpack to gigabytes: they come in pieces of this size. Pieces that fit into a processor's
cache, and whose memory is used again for the next, are read a quarter faster than those of megabytes."""
GZIP = b"\x1f\x8b"


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file, unpacked if it is compressed; fewer where the file is shorter or broken."""
    found = b""
    for piece in Pieces(path, most_bytes=count):
        found += piece
        if len(found) >= count:
            break
    return found[:count]


class Pieces:
    """Iterate over it once; `notes` then says what was wrong."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_PIECE_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                is_packed = file.read(2) == GZIP
                file.seek(0)
                wanted = PACKED_BYTES if is_packed else PLAIN_BYTES
                read = iter(lambda: file.read(wanted), b"")
                yield from self._unpacked(read) if is_packed else read
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}.") from None

    def _unpacked(self, compressed: Iterator[bytes]) -> Iterator[bytes]:
        unpack, within_member = zlib.decompressobj(zlib.MAX_WBITS | 16), False
        try:
            for data in compressed:
                while data:
                    yield unpack.decompress(data, self._most_bytes)
                    data, within_member = unpack.unconsumed_tail, not unpack.eof
                    if unpack.eof:  # another member may follow: files are appended to and concatenated
                        data = unpack.unused_data.lstrip(b"\0")
                        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
            yield unpack.flush()
        except zlib.error as error:
            self.notes.append(f"the compressed data is damaged ({error}): what lies behind that place is missing")
            return
        if within_member:
            self.notes.append("the compressed file is cut off: its end is missing")
