"""`AllocatorSettings`: what `PYTORCH_CUDA_ALLOC_CONF` sets, and the sizes that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from nearpeak.errors import SettingError

__all__ = ["KIB", "MIB", "AllocatorSettings", "parse_settings"]

KIB = 1 << 10
MIB = 1 << 20
SMALLEST_BLOCK_BYTES = 512
LARGEST_SMALL_BYTES = 1 * MIB
"""Requests up to this size come from segments of 2 MiB, larger ones from a pool of their own."""
SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
"""Requests from this size get a segment of their own, rounded up to 2 MiB."""
ROUND_SEGMENT_BYTES = 2 * MIB
LAST_ROUNDUP_KEY_MIB = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """PyTorch's caching allocator as it is configured; the defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    """Blocks from this size are never split; None: all may be."""
    roundup_power2_divisions: dict[int, int] = field(default_factory=dict)
    """Size in MiB (powers of two) → divisions of the interval up to the next power of two; 0 or 1 is off."""
    garbage_collection_threshold: float = 0.0
    """Share of the capacity above which cached blocks are given back before a new segment is taken."""
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB

    def __post_init__(self) -> None:
        if self.max_split_bytes is not None and self.max_split_bytes < self.large_segment_bytes:
            raise SettingError(
                f"max_split_size_mb={self.max_split_bytes / MIB:g}: must be at least {self.large_segment_bytes // MIB}."
            )
        if not 0 <= self.garbage_collection_threshold < 1:
            raise SettingError(
                f"garbage_collection_threshold={self.garbage_collection_threshold:g}: must be from 0 to below 1."
            )

    def rounded(self, size: int) -> int:
        """The size of the block that serves a request."""
        if size < SMALLEST_BLOCK_BYTES:
            return SMALLEST_BLOCK_BYTES
        divisions = self._divisions(size)
        if divisions > 1 and size > SMALLEST_BLOCK_BYTES * divisions:
            return _next_division(size, divisions)
        return -(-size // SMALLEST_BLOCK_BYTES) * SMALLEST_BLOCK_BYTES

    def segment_bytes(self, block_bytes: int) -> int:
        """What is taken from the driver for a block that no cached one can serve (without expandable segments)."""
        if block_bytes <= LARGEST_SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return -(-block_bytes // ROUND_SEGMENT_BYTES) * ROUND_SEGMENT_BYTES

    def _divisions(self, size: int) -> int:
        if not self.roundup_power2_divisions:
            return 0
        key = 1 << max(0, min(size // MIB, LAST_ROUNDUP_KEY_MIB).bit_length() - 1)
        return self.roundup_power2_divisions.get(key, 0)


def _next_division(size: int, divisions: int) -> int:
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    return floor << 1 if step == 0 else -(-size // step) * step


def parse_settings(text: str) -> AllocatorSettings:
    """Read the value of `PYTORCH_CUDA_ALLOC_CONF`.

    >>> parse_settings("expandable_segments:True,garbage_collection_threshold:0.8").expandable_segments
    True
    """
    settings: dict[str, Any] = {}
    for name, value in re.findall(r"\s*(\w+)\s*:\s*(\[[^\]]*\]|[^,]*)", text):
        settings |= _parsed(name, value.strip())
    return AllocatorSettings(**settings)


def _parsed(name: str, value: str) -> dict[str, Any]:
    """What one entry sets; entries that do not change where blocks lie are left out."""
    try:
        match name:
            case "expandable_segments":
                return {"expandable_segments": value.lower() in ("true", "1")}
            case "max_split_size_mb":
                return {"max_split_bytes": int(value) * MIB}
            case "garbage_collection_threshold":
                return {"garbage_collection_threshold": float(value)}
            case "max_non_split_rounding_mb":
                return {"max_non_split_rounding_bytes": int(value) * MIB}
            case "large_segment_size_mb":
                return {"large_segment_bytes": int(value) * MIB}
            case "roundup_power2_divisions":
                return {"roundup_power2_divisions": _parsed_divisions(value)}
    except ValueError:
        raise SettingError(f"{name}:{value}: cannot be read as PYTORCH_CUDA_ALLOC_CONF; it needs a number.") from None
    return {}


def _parsed_divisions(value: str) -> dict[int, int]:
    """``4`` for all sizes, or ``[256:1,512:2,>:4]``: the first entry holds below its key too, `>` above the last."""
    keys = [1 << power for power in range(LAST_ROUNDUP_KEY_MIB.bit_length())]
    if not value.startswith("["):
        return dict.fromkeys(keys, int(value))
    divisions: dict[int, int] = {}
    for pair in value.strip("[]").split(","):
        name, _, count = pair.strip().partition(":")
        if name.strip() == ">":
            above = max(divisions, default=0)
            divisions |= {key: int(count) for key in keys if key > above}
        elif not divisions:
            divisions = {key: int(count) for key in keys if key <= int(name)}
        else:
            divisions[int(name)] = int(count)
    return divisions
