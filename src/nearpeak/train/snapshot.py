"""Tensors ↔ one file: a buffer that is laid out as the safetensors file it becomes.

    layout = plan(tensors)                 # where each tensor lies in the file
    buffer = Buffer(); buffer.fit(layout)  # reused from save to save; page-locked where the tensors are on a GPU
    stage(tensors, layout, buffer)         # one pass of copies; from here on the tensors may change
    write(path, layout, buffer)            # hashed while it is written, durable when it returns

The file loads with `safetensors.torch.load_file`. Tensors that are one (tied weights) are stored once and come back as
one from `read`; a tensor whose memory is not in the order of its dimensions gets that order back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearpeak.errors import StorageError
from nearpeak.train.durable import CHUNK_BYTES, FileRecord, sync_file
from nearpeak.train.nested import (
    decode_document,
    encode_document,
    flatten_state,
    restore_rng,
    rng_state,
    unflatten_state,
)

__all__ = [
    "Buffer",
    "Layout",
    "decode_document",
    "encode_document",
    "flatten_state",
    "plan",
    "read",
    "restore_rng",
    "rng_state",
    "signature",
    "stage",
    "unflatten_state",
    "write",
    "write_document",
]

MADV_WIPEONFORK = 18
"""Linux 4.14 and later; Python has no name for it."""
BLOCK_BYTES = 4096
"""Data begins at a whole block and the buffer ends at one: direct writes need that, and mapped files read faster."""

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Offset from the first byte of the file."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A file before it is filled."""

    places: tuple[Place, ...]
    header: bytes
    total_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """What a buffer must hold: the file, up to a whole block."""
        return -(-self.total_bytes // BLOCK_BYTES) * BLOCK_BYTES


# -- layout ------------------------------------------------------------------------------------------------------------


def plan(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Layout:
    """Lay tensors out as a safetensors file: widest types first, so that each starts at a multiple of its own size."""
    first, aliases = _without_aliases(tensors)
    for name, tensor in first.items():
        _check_tensor(name, tensor)
    ordered = sorted(first.items(), key=lambda item: (-item[1].element_size(), item[0]))
    strides = {name: list(tensor.stride()) for name, tensor in ordered if _has_own_order(tensor)}
    stated = {"format": "pt", **(metadata or {})}
    stated |= {key: json.dumps(value) for key, value in (("aliases", aliases), ("strides", strides)) if value}
    return _laid_out(ordered, stated)


def _laid_out(ordered: list[tuple[str, torch.Tensor]], stated: dict[str, str]) -> Layout:
    entries: dict[str, Any] = {"__metadata__": stated}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = _padded_header(entries)
    places = tuple(
        Place(name, t.dtype, tuple(t.shape), len(header) + entries[name]["data_offsets"][0], t.nbytes)
        for name, t in ordered
    )
    return Layout(places, header, len(header) + end)


def _padded_header(entries: dict[str, Any]) -> bytes:
    """Its length in eight bytes, then JSON; blanks fill it up to a whole block, as the format allows."""
    text = json.dumps(entries, separators=(",", ":")).encode()
    filled = text + b" " * (-(len(text) + 8) % BLOCK_BYTES)
    return len(filled).to_bytes(8, "little") + filled


def _without_aliases(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Each tensor once, and which names mean the same."""
    first: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in tensors.items():
        same = seen.setdefault(_identity(tensor), name)
        if same == name:
            first[name] = tensor
        else:
            aliases[name] = same
    return first, aliases


def signature(tensors: Mapping[str, torch.Tensor]) -> Any:
    """What a layout depends on: equal signatures have equal layouts, and comparing is cheaper than planning."""
    return [(name, _identity(tensor)) for name, tensor in tensors.items()]


def _identity(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided or tensor.numel() == 0 or type(tensor) not in _PLAIN:
        return id(tensor)
    lazy = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), lazy


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if name == "__metadata__":
        raise StorageError("tensor '__metadata__': the file format keeps this name for itself.")
    if hasattr(tensor, "__tensor_flatten__"):
        raise StorageError(
            f"tensor {name}: a {type(tensor).__name__} holds other tensors: save those (of a DTensor: `to_local()`)."
        )
    if tensor.layout != torch.strided or tensor.dtype not in _NAMES or tensor.is_quantized:
        kind = f"{str(tensor.layout).removeprefix('torch.')} {str(tensor.dtype).removeprefix('torch.')}"
        raise StorageError(
            f"tensor {name}: {kind} cannot be stored; make it dense, of one of {', '.join(_NAMES.values())}."
        )
    if tensor.device.type == "meta":
        raise StorageError(f"tensor {name}: it is on the meta device and holds nothing.")


def _has_own_order(tensor: torch.Tensor) -> bool:
    """Dense, but with its dimensions in another order in memory: channels_last, a transposed weight."""
    return not tensor.is_contiguous() and _is_dense(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


# -- the buffer --------------------------------------------------------------------------------------------------------


class Buffer:
    """Memory for one staged file, kept from save to save."""

    def __init__(self, *, pinned: bool = False) -> None:
        """`pinned` locks its pages, so that a GPU copies into it by itself."""
        self.pinned = pinned
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def fit(self, layout: Layout) -> None:
        """Make it as large as the layout needs; it never shrinks."""
        if self.bytes.numel() < layout.buffer_bytes:
            self.bytes = torch.empty(0, dtype=torch.uint8)  # gives the old one back before the new one is taken
            self.bytes = _pages(layout.buffer_bytes, self.pinned)

    def touch(self, layout: Layout) -> None:
        """Make it large enough and have the system hand over every page now, which takes longer than a copy does."""
        self.fit(layout)
        self.bytes.zero_()

    def view(self, place: Place) -> torch.Tensor:
        """The part of the buffer that is one tensor."""
        return self.bytes[place.begin : place.begin + place.bytes].view(place.dtype).view(place.shape)


def _pages(size: int, pinned: bool) -> torch.Tensor:
    """Whole pages, not shared with forked loader workers, which would make every later copy into them twice as dear.

    Workers see zeros in their place. To leave the pages out of workers altogether would be a trap: a worker that
    collects such a buffer as garbage unmaps whatever stands at its addresses by then. Huge pages are not asked for:
    copying is no faster, and finding them can take seconds.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without it shares the pages, which is only slower
            memory.madvise(MADV_WIPEONFORK)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    if pinned:
        _lock_pages(buffer)
    return buffer


def _lock_pages(buffer: torch.Tensor) -> None:
    runtime: Any = torch.cuda.cudart()
    address = buffer.data_ptr()
    code = int(runtime.cudaHostRegister(address, buffer.numel(), 1))
    if code != 0:
        raise StorageError(
            f"locking {buffer.numel():,} bytes of memory for copies from the GPU failed (CUDA error {code}): too "
            "little memory, or a limit (`ulimit -l`)."
        )
    weakref.finalize(buffer.untyped_storage(), _unlock_pages, address, os.getpid())


def _unlock_pages(address: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has no CUDA to give anything back to
        runtime: Any = torch.cuda.cudart()
        runtime.cudaHostUnregister(address)


# -- staging -----------------------------------------------------------------------------------------------------------


def stage(
    tensors: Mapping[str, torch.Tensor], layout: Layout, buffer: Buffer, names: Iterable[str] | None = None
) -> None:
    """Copy tensors into the buffer; `names` limits it to some. Copies from a GPU are queued on the current stream.

    The copies of all CPU tensors are one call that holds no Python lock, so a thread can make it while others train.
    """
    wanted = None if names is None else set(names)
    places = [place for place in layout.places if place.bytes and (wanted is None or place.name in wanted)]
    by_device: dict[str, list[Place]] = {}
    for place in places:
        by_device.setdefault(tensors[place.name].device.type, []).append(place)
    with torch.no_grad():
        for group in by_device.values():
            targets = [buffer.view(place) for place in group]
            sources = [tensors[place.name].detach() for place in group]
            torch._foreach_copy_(targets, sources, non_blocking=buffer.pinned)


# -- files -------------------------------------------------------------------------------------------------------------


def write(path: Path, layout: Layout, buffer: Buffer) -> FileRecord:
    """Write the staged file; when this returns it is on the disk. Its hash is computed by a second thread meanwhile."""
    content = _memory(buffer.bytes)[: layout.buffer_bytes]
    content[: len(layout.header)] = layout.header
    content[layout.total_bytes :] = bytes(layout.buffer_bytes - layout.total_bytes)
    hashing = _Hashing(content[: layout.total_bytes])
    try:
        _write_durably(path, content, layout.total_bytes)
    except BaseException:
        hashing.stop()
        raise
    return FileRecord(layout.total_bytes, hashing.result())


def _memory(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array)


class _Hashing:
    """SHA-256 of some memory, in a thread: hashing lets other threads run."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._digest, self._stopped = content, hashlib.sha256(), False
        self._thread = threading.Thread(target=self._run, name="nearpeak-hash")
        self._thread.start()

    def _run(self) -> None:
        for begin in range(0, len(self._content), CHUNK_BYTES):
            if self._stopped:
                break
            self._digest.update(self._content[begin : begin + CHUNK_BYTES])

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()

    def result(self) -> str:
        self._thread.join()
        return self._digest.hexdigest()


def _write_durably(path: Path, content: memoryview, size: int) -> None:
    """Whole blocks past the page cache where the file system can: half the time, and no memory or cache is taken from
    the training for bytes that nobody reads soon."""
    if not (sys.platform == "linux" and _write_file(path, content, size, os.O_DIRECT)):
        _write_file(path, content[:size], size, 0)


def _write_file(path: Path, content: memoryview, size: int, flags: int) -> bool:
    """False if the file system does not do direct writes."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o666)
    except OSError as error:
        if flags and error.errno == errno.EINVAL:
            return False
        raise
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written : written + CHUNK_BYTES])
        os.ftruncate(descriptor, size)
        sync_file(descriptor)
    except OSError as error:
        if flags and error.errno == errno.EINVAL:
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def write_document(path: Path, document: Any) -> FileRecord:
    """Write JSON beside the tensors; durable when this returns."""
    content = encode_document(document)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        sync_file(file.fileno())
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())


def read(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a file, each in memory of its own; names that meant one tensor mean one again."""
    with open(path, "rb", buffering=0) as file:
        header, data_begin = _read_header(path, file)
        stated = header.pop("__metadata__", {})
        strides = json.loads(stated.get("strides", "{}"))
        tensors = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
            file.seek(data_begin + entry["data_offsets"][0])
            tensors[name] = _in_order(_read_tensor(path, file, name, entry), strides.get(name))
    return tensors | {alias: tensors[name] for alias, name in json.loads(stated.get("aliases", "{}")).items()}


def _read_header(path: Path, file: Any) -> tuple[dict[str, Any], int]:
    try:
        size = int.from_bytes(file.read(8), "little")
        if size > os.fstat(file.fileno()).st_size:
            raise ValueError(f"a header of {size:,} bytes")
        return json.loads(file.read(size)), size + 8
    except ValueError as error:
        raise StorageError(f"{path}: not a safetensors file, or a damaged one ({error}).") from None


def _read_tensor(path: Path, file: Any, name: str, entry: dict[str, Any]) -> torch.Tensor:
    if entry["dtype"] not in _DTYPES:
        raise StorageError(f"{path}: {name} is {entry['dtype']}, which this version of nearpeak does not know.")
    tensor = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
    if tensor.numel():
        target = _memory(tensor.view(-1).view(torch.uint8))
        read = 0
        while read < len(target) and (more := file.readinto(target[read:])):
            read += more
        if read < len(target):
            raise StorageError(f"{path}: it ends inside {name}: it was cut.")
    return tensor


def _in_order(tensor: torch.Tensor, stride: list[int] | None) -> torch.Tensor:
    if stride is None:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
