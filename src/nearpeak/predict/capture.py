"""Captures a training step on a machine without a GPU: what it allocates, frees, computes and moves.

The model runs unmodified, on tensors without data, in a process of its own: it may raise, hang or be killed there
without harm here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
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
LOOKED_EVERY_S = 1.0


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
        asked = Path(folder, "requests.json")
        asked.write_bytes(msgspec.json.encode(list(requests)))
        command = [sys.executable, "-m", "nearpeak.predict.pretend.worker", str(asked), folder]
        why = _run([*command, str(memory_limit_bytes), str(time_limit_s)], Path(folder), time_limit_s + START_S)
        answers = [path.read_bytes() for path in _answers(folder, len(requests)) if path.exists()]
    raw = [msgspec.msgpack.decode(answer, type=_Result) for answer in answers]
    return [each.trace or _error(request, each) for request, each in zip(requests, raw, strict=False)], why


def _answers(folder: str, count: int) -> list[Path]:
    """Where the process puts its answer to each request, in their order."""
    return [Path(folder, f"{number}.msgpack") for number in range(count)]


class _Result(msgspec.Struct):
    """What the process says of a request."""

    trace: StepTrace | None = None
    error: str = ""
    kind: str = ""


def _run(command: list[str], folder: Path, time_limit_s: float) -> str:
    """Run the process; returns what to say of requests that it leaves without an answer.

    The limit holds from one answer to the next. What the user's code may have started goes with the process.
    """
    complaints = folder / "stderr"
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
        try:
            in_time = _ended_in_time(process, folder, time_limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not in_time:
        return f"the process that ran its step gave no answer within {time_limit_s:g} s"
    lines = [line for line in complaints.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no output"
    return f"the process that ran its step ended with code {process.returncode}: {last}"


def _ended_in_time(process: subprocess.Popen[bytes], folder: Path, time_limit_s: float) -> bool:
    """Waits; the clock starts anew with each answer."""
    answered, deadline_s = 0, time.monotonic() + time_limit_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOKED_EVERY_S)
            return True
        found = len(list(folder.glob("*.msgpack")))
        if found > answered:
            answered, deadline_s = found, time.monotonic() + time_limit_s
    return False


def _error(request: CaptureRequest, result: _Result) -> NearpeakError:
    kind = getattr(errors, result.kind, UnsupportedError)
    return kind(result.error if request.model in result.error else f"{request.model}: {result.error}")
