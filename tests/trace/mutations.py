"""Damages traces, by a seed: cut, flipped, reordered, doubled, with wrong types and huge numbers, packed or not."""

from __future__ import annotations

import gzip
import json
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
WORD = re.compile(rb'"[^"]*"|true|false|null|-?\d+(?:\.\d+)?|[\[\]{}]')
ODD = (b"null", b"true", b'"x"', b"[]", b"{}", b"-1", b"0", b"1e999", b"-1e308", b"1e18", b"99999999999999999999999")
ODD += (b"9223372036854775807", b"-9223372036854775808", b"NaN", b"Infinity", b"0.1e-400", b'"\xff\xfe"', b"'")
ODD_VALUES = (None, -1, 0, 2**63 - 1, -(2**63), 1e300, "x", b"\xff\x00", 2**40, 0.5)

Mutation = Callable[[bytes, random.Random], bytes]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def cut_head(content: bytes, rng: random.Random) -> bytes:
    return content[rng.randrange(len(content) + 1) :]


def flip(content: bytes, rng: random.Random) -> bytes:
    octets = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 10, 100))):
        if octets:
            octets[rng.randrange(len(octets))] ^= 1 << rng.randrange(8)
    return bytes(octets)


def overwrite(content: bytes, rng: random.Random) -> bytes:
    at, count = rng.randrange(len(content) + 1), rng.choice((1, 4, 16, 64))
    return content[:at] + rng.choice((b"\xff", b"\x00", b"\x80", b"[", b'"')) * count + content[at + count :]


def reorder(content: bytes, rng: random.Random) -> bytes:
    a, b, c = sorted(rng.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def double(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:b] + content[a:b] * rng.choice((1, 2, 5)) + content[b:]


def drop(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:a] + content[b:]


def odd_number(content: bytes, rng: random.Random) -> bytes:
    """For JSON: another value in the place of some numbers."""
    return _replaced(content, rng, NUMBER)


def odd_word(content: bytes, rng: random.Random) -> bytes:
    """For JSON: another value, or none, in the place of some word or bracket."""
    return _replaced(content, rng, WORD)


def _replaced(content: bytes, rng: random.Random, pattern: re.Pattern[bytes]) -> bytes:
    places = [match.span() for match in pattern.finditer(content)]
    for start, end in sorted(rng.sample(places, min(len(places), rng.choice((1, 1, 2, 10)))), reverse=True):
        content = content[:start] + rng.choice((*ODD, b"")) + content[end:]
    return content


BYTEWISE: tuple[Mutation, ...] = (cut, cut_head, flip, flip, overwrite, reorder, double, drop)
TEXTUAL: tuple[Mutation, ...] = (odd_number, odd_number, odd_word)


def mutated(content: bytes, rng: random.Random, *, textual: bool) -> bytes:
    """One damaged version: some mutations, and one in six packed, damaged before or after."""
    kinds = BYTEWISE + (TEXTUAL if textual else ())
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(kinds)(content, rng)
    if rng.random() < 1 / 6:
        content = gzip.compress(content, compresslevel=1)
        if rng.random() < 1 / 2:
            content = rng.choice((cut, flip))(content, rng)
    return content


def mutated_export(path: Path, rng: random.Random) -> None:
    """Damage a SQLite export in place: its bytes, or its cells, columns and tables."""
    if rng.random() < 1 / 3:
        path.write_bytes(mutated(path.read_bytes(), rng, textual=False))
        return
    database = sqlite3.connect(path)
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for _ in range(rng.choice((1, 2, 5, 20))):
        table = rng.choice(tables)
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if not columns:
            continue
        _damage(database, rng, table, rng.choice(columns))
    database.commit()
    database.close()


def _damage(database: sqlite3.Connection, rng: random.Random, table: str, column: str) -> None:
    action = rng.random()
    try:
        if action < 0.7:
            some = "" if rng.random() < 0.3 else f" WHERE rowid % {rng.randrange(1, 9)} = 0"
            database.execute(f'UPDATE {table} SET "{column}" = ?{some}', (rng.choice(ODD_VALUES),))
        elif action < 0.8:
            database.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
        elif action < 0.9:
            database.execute(f"DELETE FROM {table} WHERE rowid % {rng.randrange(1, 4)} = 0")
        else:
            database.execute(f"DROP TABLE {table}")
    except sqlite3.Error:
        pass  # the schema forbids some of them


def small_kineto(steps: int = 3) -> bytes:
    """A small trace as PyTorch's profiler writes it."""
    events: list[object] = [{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}}]
    for step in range(steps):
        at = 1_000_000.0 + step * 10_000
        events += [
            span("user_annotation", f"ProfilerStep#{step}", 7, 7, at, 10_000),
            span("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 7, 7, at + 100, 3000),
            span("cpu_op", "aten::mm", 7, 7, at + 3200, 500, **{"External id": 1, "Input Dims": [[8, 8], [8, 8]]}),
            span("cuda_runtime", "cudaLaunchKernel", 7, 7, at + 3300, 20.5, correlation=step * 2),
            span("kernel", "ampere_sgemm_128x64_nn", 0, 7, at + 3400, 4000.25, correlation=step * 2, stream=7),
            span("cuda_runtime", "cudaLaunchKernel", 7, 7, at + 3600, 20, correlation=step * 2 + 1),
            span("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 20, at + 6000, 3000, correlation=step * 2 + 1),
            span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 7, at + 9100, 200, bytes=4096),
            span("cuda_runtime", "cudaDeviceSynchronize", 7, 7, at + 9200, 700),
        ]
    device = {"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 42_000_000_000, "computeMajor": 8, "computeMinor": 0}
    document = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": {"rank": 0, "world_size": 2}}
    return json.dumps({**document, "traceEvents": events, "traceName": "x.json"}).encode()


def span(
    category: str, name: str, process: int, thread: int, at: float, lasts: float, **args: object
) -> dict[str, object]:
    """A complete event."""
    head = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
    return {**head, "ts": at, "dur": lasts, "args": args}
