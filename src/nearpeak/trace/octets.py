"""The bytes of a trace file without holding them: mapped into memory, decompressed to disk first where needed."""

from __future__ import annotations

import gzip
import mmap
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError

__all__ = ["GZIP", "is_gzip", "octets_of"]

GZIP = b"\x1f\x8b"
PIECE_BYTES = 1 << 20
MOST_BYTES = 64 << 30
"""Of a decompressed trace: what is larger is a bomb, or no trace that this machine could show."""


def is_gzip(path: Path) -> bool:
    """By its first bytes: names lie."""
    with path.open("rb") as file:
        return file.read(2) == GZIP


@contextmanager
def octets_of(path: Path) -> Iterator[NDArray[np.uint8]]:
    """All bytes of the file, decompressed; of a cut gzip, those before the cut. They must not outlive the block."""
    try:
        with _plain(path) as file:
            yield _mapped(file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


@contextmanager
def _plain(path: Path) -> Iterator[IO[bytes]]:
    if not is_gzip(path):
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="nearpeak-") as spool:
        _decompress(path, spool)
        yield spool


def _decompress(path: Path, spool: IO[bytes]) -> None:
    """Into `spool`; a cut or damaged tail ends it, as far as it could be read."""
    with gzip.open(path) as file:
        try:
            while piece := file.read(PIECE_BYTES):
                spool.write(piece)
                if spool.tell() > MOST_BYTES:
                    raise DataError(f"{path}: decompresses to more than {MOST_BYTES:,} bytes; decompress it yourself.")
        except (EOFError, zlib.error, gzip.BadGzipFile):
            pass  # the reader says what is missing: it sees where the content ends
    spool.flush()


def _mapped(file: IO[bytes]) -> NDArray[np.uint8]:
    """Unmapped when the last view of it is gone: a view cannot be taken back."""
    if not file.seek(0, 2):
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
