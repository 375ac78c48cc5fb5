"""Where in the user's code a block was asked for, read from the frames of a snapshot."""

from __future__ import annotations

from typing import Any

__all__ = ["BEFORE_RECORDING", "UNKNOWN", "site_of"]

BEFORE_RECORDING = "held before the recording began"
UNKNOWN = "no frames recorded"
LIBRARY_PARTS = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>")
AUTOGRAD_MARK = "autograd::Engine"


def site_of(frames: tuple[dict[str, Any], ...]) -> tuple[str, str]:
    """(function and place, phase) of the innermost frame that is the user's own; else of the innermost in Python."""
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = [frame for frame in python if not any(part in frame["filename"] for part in LIBRARY_PARTS)]
    phase = _phase(frames, python)
    if own or python:
        return _place((own or python)[0]), phase
    return (UNKNOWN if not frames else _native(frames)), phase


def _phase(frames: tuple[dict[str, Any], ...], python: list[dict[str, Any]]) -> str:
    if any(AUTOGRAD_MARK in str(frame.get("name", "")) for frame in frames):
        return "backward"
    if any("/torch/optim/" in frame["filename"] for frame in python):
        return "optimizer"
    return "forward" if python else "unknown"


def _place(frame: dict[str, Any]) -> str:
    short = "/".join(str(frame["filename"]).split("/")[-2:])
    return f"{frame.get('name', '?')} ({short}:{frame.get('line', 0)})"


def _native(frames: tuple[dict[str, Any], ...]) -> str:
    """Without Python frames: the first function that is neither unwinding nor the allocator itself."""
    skipped = ("unwind", "CapturedTraceback", "gather", "CachingAllocator", "empty", "??", "Allocator")
    for frame in frames:
        name = str(frame.get("name", "")).replace("(anonymous namespace)::", "")
        if name and not any(part in name for part in skipped):
            return name.split("(")[0][:80]
    return UNKNOWN
