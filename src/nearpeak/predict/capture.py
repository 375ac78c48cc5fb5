"""Captures a training step on a machine without a GPU: what it allocates, frees, computes and moves.

The model runs unmodified, on tensors without data, in a process of its own: it may raise, hang or be killed there
without harm here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nearpeak import errors
from nearpeak.errors import NearpeakError, UnsupportedError
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace

__all__ = ["capture", "capture_all"]

TIME_LIMIT_S = 120.0
MEMORY_LIMIT_BYTES = 4 << 30
START_S = 60.0
"""For the process to begin, on a busy machine; a step that hangs outside of Python is ended after this, too."""


def capture(
    request: CaptureRequest, *, time_limit_s: float = TIME_LIMIT_S, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> StepTrace:
    """Run one step as the request says. What cannot be run raises UnsupportedError that names operator and module."""
    (result,) = capture_all([request], time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes)
    if isinstance(result, NearpeakError):
        raise result
    return result


def capture_all(
    requests: Sequence[CaptureRequest],
    *,
    time_limit_s: float = TIME_LIMIT_S,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
) -> list[StepTrace | NearpeakError]:
    """Several steps in one process, which costs less than one each; the error stands where a step could not be run.

    The time limit holds for each. Where a step takes the process down with it, the others go on in a new one.
    """
    results: list[StepTrace | NearpeakError] = []
    while len(results) < len(requests):
        rest = requests[len(results) :]
        found, why = _in_one_process(rest, time_limit_s, memory_limit_bytes)
        results += found
        if len(found) < len(rest):
            results.append(UnsupportedError(f"{rest[len(found)].model}: {why}"))
    return results


def _in_one_process(
    requests: Sequence[CaptureRequest], time_limit_s: float, memory_limit_bytes: int
) -> tuple[list[StepTrace | NearpeakError], str]:
    """(results of the steps before the process ended, why it ended)"""
    with tempfile.TemporaryDirectory(prefix="nearpeak-") as folder:
        asked, answered = Path(folder, "requests.json"), Path(folder, "results.msgpack")
        asked.write_bytes(msgspec.json.encode(list(requests)))
        command = [sys.executable, "-m", "nearpeak.predict.pretend.worker", str(asked), str(answered)]
        why = _run([*command, str(memory_limit_bytes), str(time_limit_s)], time_limit_s * len(requests) + START_S)
        raw = msgspec.msgpack.decode(answered.read_bytes(), type=list[_Result]) if answered.exists() else []
    return [each.trace or _error(request, each) for request, each in zip(requests, raw, strict=False)], why


class _Result(msgspec.Struct):
    """What the process says of a request."""

    trace: StepTrace | None = None
    error: str = ""
    kind: str = ""


def _run(command: list[str], time_limit_s: float) -> str:
    """Run the process; returns what to say of requests that it leaves without an answer."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=time_limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"the process that ran its step did not end within {time_limit_s:g} s"
    lines = [line for line in ended.stderr.strip().splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no output"
    return f"the process that ran its step ended with code {ended.returncode}: {last}"


def _error(request: CaptureRequest, result: _Result) -> NearpeakError:
    kind = getattr(errors, result.kind, UnsupportedError)
    return kind(result.error if request.model in result.error else f"{request.model}: {result.error}")
