"""Damaged logs: reading and diagnosing one ends well or with an error of ours, and soon.

python tests/hardware/logs/fuzz.py --count 10000
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import small_logs

from nearpeak.diagnose.device_log import diagnose_log
from nearpeak.errors import NearpeakError
from nearpeak.hardware.logs.log import parse_log
from nearpeak.hardware.logs.text import to_lines

CASES = Path(__file__).parents[4] / "shared" / "cases" / "monitor"
PART_BYTES = 12_000
"""Of a real log, which may be large, one part is taken."""
SLOW_S = 5.0
TOKENS = (
    "-1", "1e308", "1e999", "nan", "inf", "-", "", "0x", "0xFFFFFFFFFFFFFFFFFFFF", "99999999999999999999", "²", "٣",
    "½", "[N/A]", "ERR!", "[GPU requires reset]", "\t", "\x00", "\ufeff", ",", ", ", ";", " : ", "|", "/", "%", " MiB",
    "\n", "# gpu", "timestamp, ", "GPU 00000000:01:00.0", "<gpu>", "</gpu>", "&amp;", "&x;", "{", "}", "[", "\"",
    "1970/01/01 00:00:00", "9999/99/99 99:99:99.999", "0000/00/00", "Sun Feb 30 10:00:00 2026", "P99", "16x",
    "\x1b[31m", "\r", "\u2028",
)  # fmt: skip


def seeds() -> list[bytes]:
    """The project's own small logs, and real ones where they are at hand."""
    own = [getattr(small_logs, name).encode() for name in small_logs.__all__]
    return own + [path.read_bytes() for path in sorted(CASES.rglob("*")) if path.is_file()]


def mutated(rng: random.Random, logs: list[bytes]) -> bytes:
    """One log with one to five damages."""
    own = len(small_logs.__all__)
    data = _part(rng, rng.choice(logs[:own] if rng.random() < 0.7 else logs))
    for _ in range(rng.randint(1, 5)):
        data = rng.choice((_flip, _cut, _insert, _swap_lines, _repeat, _splice))(rng, data, logs)
    if rng.random() < 0.1:
        data = data.decode("utf-8", errors="replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-8-sig", "utf-32")))
    return data


def _part(rng: random.Random, data: bytes) -> bytes:
    if len(data) <= PART_BYTES:
        return data
    start = rng.randrange(len(data) - PART_BYTES)
    return data[start : start + PART_BYTES]


def _flip(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 20))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    """Mostly a little: what is cut to pieces is no log any more, and refused at once."""
    first = rng.randrange(len(data) + 1)
    second = first + (rng.randrange(60) if rng.random() < 0.8 else rng.randrange(len(data) + 1))
    return data[:first] + data[second:] if rng.random() < 0.9 else data[first : first + 4000]


def _insert(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS).encode() * rng.choice((1, 1, 1, 50)) + data[at:]


def _swap_lines(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    lines = data.split(b"\n")
    first, second = (rng.randrange(len(lines)) for _ in range(2))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


def _repeat(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    first, second = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:second] + data[first:second][:4000] * rng.choice((1, 3)) + data[second:]


def _splice(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    other = _part(rng, rng.choice(logs))
    at = rng.randrange(len(data) + 1)
    return data[:at] + other[rng.randrange(len(other) + 1) :][:3000] + data[at:]


def attempt(data: bytes) -> str:
    """How reading and judging it ended."""
    try:
        diagnose_log(parse_log(to_lines(data), "fuzzed"))
    except NearpeakError as error:
        return type(error).__name__
    return "read"


def run(count: int, seed: int = 0) -> Counter[str]:
    """Endings of `count` damaged logs; an error that is not ours comes through with the number of its log."""
    logs, endings = seeds(), Counter[str]()
    for number in range(count):
        data = mutated(random.Random(f"{seed} {number}"), logs)
        begun_s = time.perf_counter()
        try:
            endings[attempt(data)] += 1
        except Exception as error:
            error.add_note(f"damaged log {number} of seed {seed}: {data[:300]!r}")
            raise
        took_s = time.perf_counter() - begun_s
        assert took_s < SLOW_S, f"damaged log {number} of seed {seed} took {took_s:.1f} s"
    return endings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(dict(run(options.count, options.seed)))  # noqa: T201
