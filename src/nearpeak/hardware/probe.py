"""Questions that may crash or hang, asked in a process of their own.

A broken driver can end the process that opens it, or hold it for ever; a torch built for other libraries can do the
same on import. `probe` turns each of these into a `ProbeFailure` that says what happened.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

__all__ = ["QUESTIONS", "ProbeFailure", "probe"]

QUESTIONS = {
    "nvml": ("nearpeak.hardware.nvml", "read_nvml"),
    "torch": ("nearpeak.hardware.torch_build", "read_torch"),
}
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """Why a question got no answer."""

    why: str


def probe(question: str, kind: type[Answer], *, timeout_s: float = 60.0) -> Answer | ProbeFailure:
    """Ask one of QUESTIONS in a child process; the answer is of type `kind`."""
    import msgspec

    command = [sys.executable, "-m", "nearpeak.hardware.probe", question]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return ProbeFailure(f"gave no answer within {timeout_s:g} s")
    if done.returncode != 0:
        return ProbeFailure(_why_it_ended(done.returncode, done.stderr.decode(errors="replace")))
    try:
        # The last line: libraries print on stdout as they are loaded.
        return msgspec.json.decode(done.stdout.splitlines()[-1] if done.stdout else b"", type=kind)
    except msgspec.DecodeError as error:
        return ProbeFailure(f"gave an answer that is none: {error}")


def _why_it_ended(code: int, said: str) -> str:
    if code < 0:
        return f"crashed with {signal.Signals(-code).name}"
    lines = said.strip().splitlines()
    return lines[-1] if lines else f"ended with exit code {code}"


def _answer(question: str) -> None:
    """In the child: ask, and print the answer as one line of JSON."""
    import msgspec

    module, function = QUESTIONS[question]
    answer = getattr(import_module(module), function)()
    sys.stdout.write("\n" + msgspec.json.encode(answer).decode() + "\n")


if __name__ == "__main__":
    _answer(sys.argv[1])
