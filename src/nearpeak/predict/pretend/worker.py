"""The process in which a step is captured: `python -m nearpeak.predict.pretend.worker REQUESTS RESULTS BYTES SECONDS`.

Each request gets a result: a trace, or what could not be done and where.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nearpeak.errors import NearpeakError, UnsupportedError
from nearpeak.predict.request import CaptureRequest

if TYPE_CHECKING:
    from nearpeak.predict.pretend.modules import ModuleStack
    from nearpeak.predict.step_trace import StepTrace

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Capture as a file of requests says; write one result for each."""
    request_path, result_path, memory_bytes, limit_s = arguments
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    requests = msgspec.json.decode(Path(request_path).read_bytes(), type=list[CaptureRequest])
    results: list[dict[str, Any]] = []
    for request in requests:
        results.append(_captured(request, float(limit_s)))
        Path(result_path).write_bytes(msgspec.msgpack.encode(results))  # those done, should the next one kill us
    return 0


def _captured(request: CaptureRequest, limit_s: float) -> dict[str, Any]:
    _prepared()
    try:
        with _at_most(limit_s):
            return {"trace": _trace(request)}
    except NearpeakError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except Exception as error:  # noqa: BLE001  the user's model may raise anything; it is named, and nobody falls
        return {"error": _described(error), "kind": "UnsupportedError"}


@contextlib.contextmanager
def _at_most(limit_s: float) -> Iterator[None]:
    """Interrupt what takes longer."""

    def interrupt(*_: Any) -> None:
        raise UnsupportedError(
            f"its step was not done after {limit_s:g} s; raise the time limit if the model is that large"
        )

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _trace(request: CaptureRequest) -> StepTrace:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from nearpeak.predict.pretend import kernels
    from nearpeak.predict.pretend.hidden import HiddenMemory
    from nearpeak.predict.pretend.sources import subject_of
    from nearpeak.predict.pretend.step import run_step
    from nearpeak.predict.pretend.tracker import Tracker

    modules = _prepared()
    kernels.use(kernels.Card(request.compute_capability))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    tracker = Tracker(modules, HiddenMemory(request.compute_capability, tries_algorithms=request.cudnn_benchmark))
    trace = run_step(subject_of(request, fake), tracker, fake)
    return replace(trace, facts={"cudnn_benchmark": str(request.cudnn_benchmark)})


@functools.cache
def _prepared() -> ModuleStack:
    """Change torch for this process, once."""
    import torch

    from nearpeak.predict.pretend import autocast, device, kernels
    from nearpeak.predict.pretend.modules import ModuleStack

    torch.set_num_threads(1)
    device.prepare()
    autocast.register()
    kernels.register()
    return ModuleStack()


def _described(error: Exception) -> str:
    """What failed and in which module."""
    from nearpeak.predict.pretend.tracker import last_operator

    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"unsupported: {last_operator()}: {type(error).__name__}: {first}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
