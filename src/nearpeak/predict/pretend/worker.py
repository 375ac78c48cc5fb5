"""The process in which a step is captured: `python -m nearpeak.predict.pretend.worker REQUESTS FOLDER BYTES SECONDS`.

Each request gets a result, a file of its own in the folder: a trace, or what could not be done and where. Steps run in
a child of this process, which has loaded torch and nothing else: an error may leave torch in any state, or end it, so
that what comes next has a new child.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from nearpeak.errors import NearpeakError, UnsupportedError
from nearpeak.hardware.packages import extra_of
from nearpeak.predict.request import CaptureRequest

if TYPE_CHECKING:
    from nearpeak.predict.pretend.batches import Inputs
    from nearpeak.predict.pretend.modules import ModuleStack
    from nearpeak.predict.step_trace import StepTrace

__all__ = ["main"]

REPEATED_S = 2.0
"""The model's own code may catch what interrupts it; then it is interrupted again."""
DONE, FAILED, AGAIN, LEFT = 0, 3, 4, 5
"""How a child ends: all requests have answers; one failed, and the others want a new child; one wants another try; the
model's code asked to exit."""
NOTE_BYTES = 512


def main(arguments: list[str]) -> int:
    """Capture as a file of requests says; write one result for each."""
    request_path, folder, memory_bytes, limit_s = arguments
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    requests = msgspec.json.decode(Path(request_path).read_bytes(), type=list[CaptureRequest])
    work = _Work(requests, Path(folder), float(limit_s))
    work.prepare()
    while work.first_open < len(requests):
        work.in_a_child()
    return 0


class _Work:
    """The requests, and which of them have answers."""

    def __init__(self, requests: list[CaptureRequest], folder: Path, limit_s: float) -> None:
        self._requests, self._folder, self._limit_s = requests, folder, limit_s
        self._modules: ModuleStack
        self._note = mmap.mmap(-1, NOTE_BYTES)
        """Where the step is, should its process end."""
        self._since_s: dict[int, float] = {}

    def prepare(self) -> None:
        """Before the first child; what torch lacks is the answer to all requests."""
        try:
            self._modules = _prepared(self._requests)
        except (ImportError, NearpeakError) as error:
            for number in range(len(self._requests)):
                self._answer(number, _lacking(error))

    @property
    def first_open(self) -> int:
        """The first request without an answer."""
        return sum(self._path(number).exists() for number in range(len(self._requests)))

    def in_a_child(self) -> None:
        """All that one process gets done."""
        number = self.first_open
        self._since_s.setdefault(number, time.monotonic())
        self._note[:] = bytes(NOTE_BYTES)
        pid = os.fork()
        if pid == 0:
            self._as_a_child(number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code not in (DONE, FAILED, AGAIN):
            where = self._note[:].rstrip(b"\0").decode(errors="replace") or "before its first operator"
            self._answer(self.first_open, {"error": f"unsupported: {where}: {_end(code)}", "kind": "UnsupportedError"})

    def _as_a_child(self, number: int) -> NoReturn:
        """Never goes on with what its parent was doing, even if the model asks to exit."""
        code = LEFT
        try:
            code = self._run(number)
        finally:
            os._exit(code)

    def _run(self, start: int) -> int:
        """In the child: one request after another, until one fails."""
        for number in range(start, len(self._requests)):
            inputs = self._inputs()
            self._since_s.setdefault(number, time.monotonic())
            try:
                with _at_most(self._limit_s, self._since_s[number]):
                    trace = _trace(self._requests[number], inputs, self._modules, self._note)
            except NearpeakError as error:
                self._answer(number, {"error": str(error), "kind": type(error).__name__})
                return FAILED
            except Exception as error:  # noqa: BLE001  the user's model may raise anything; it is named, nobody falls
                return self._failed(number, inputs, error)
            self._answer(number, {"trace": trace})
        return DONE

    def _failed(self, number: int, inputs: Inputs, error: Exception) -> int:
        """With other inputs, where the model refused those it was given and there are others to try."""
        said = inputs.refused or _described(error)
        if inputs.learned_from(error, self._requests[number].batch):
            self._learned.write_bytes(msgspec.msgpack.encode(asdict(replace(inputs, refused=said))))
            return AGAIN
        self._answer(number, {"error": said, "kind": "UnsupportedError"})
        return FAILED

    def _inputs(self) -> Inputs:
        """As a failed attempt left them."""
        from nearpeak.predict.pretend.batches import Inputs

        return Inputs(**msgspec.msgpack.decode(self._learned.read_bytes())) if self._learned.exists() else Inputs()

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        unfinished = self._folder / f"{number}.part"
        unfinished.write_bytes(msgspec.msgpack.encode(answer))
        self._learned.unlink(missing_ok=True)
        unfinished.rename(self._path(number))  # whole, or not there

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.msgpack"

    @property
    def _learned(self) -> Path:
        return self._folder / "inputs"


@contextlib.contextmanager
def _at_most(limit_s: float, since_s: float) -> Iterator[None]:
    """Interrupt what takes longer."""

    def interrupt(*_: Any) -> None:
        raise UnsupportedError(
            f"its step was not done after {limit_s:g} s; raise the time limit if the model is that large"
        )

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, since_s + limit_s - time.monotonic()), REPEATED_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _trace(request: CaptureRequest, inputs: Inputs, modules: ModuleStack, note: Any) -> StepTrace:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from nearpeak.predict.pretend import kernels
    from nearpeak.predict.pretend.hidden import HiddenMemory
    from nearpeak.predict.pretend.said import begin
    from nearpeak.predict.pretend.sources import subject_of
    from nearpeak.predict.pretend.step import run_step
    from nearpeak.predict.pretend.tracker import Tracker

    begin(note)
    kernels.use(kernels.Card(request.compute_capability))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    tracker = Tracker(modules, HiddenMemory(request.compute_capability, tries_algorithms=request.cudnn_benchmark))
    trace = run_step(subject_of(request, fake, inputs), tracker, fake)
    return replace(trace, facts={"cudnn_benchmark": str(request.cudnn_benchmark)})


def _prepared(requests: list[CaptureRequest]) -> ModuleStack:
    """Change torch for this process, and load what several children would."""
    import torch

    from nearpeak.predict.pretend import autocast, device, kernels
    from nearpeak.predict.pretend.modules import ModuleStack

    torch.set_num_threads(1)
    device.prepare()
    autocast.register()
    kernels.register()
    if any(request.kind == "huggingface" for request in requests):
        from nearpeak.predict.pretend.huggingface import transformers

        transformers()
    return ModuleStack()


def _lacking(error: ImportError | NearpeakError) -> dict[str, Any]:
    """Why no step can be run at all."""
    if isinstance(error, NearpeakError):
        return {"error": str(error), "kind": type(error).__name__}
    extra = extra_of((error.name or "").partition(".")[0]) if isinstance(error, ModuleNotFoundError) else None
    if extra is None:
        return {"error": f"torch cannot be loaded: {error}", "kind": "UnsupportedError"}
    said = f"{error.name} is not installed. Get it with: pip install 'nearpeak[{extra}]'"
    return {"error": said, "kind": "MissingExtraError"}


def _described(error: Exception) -> str:
    """What failed and in which module."""
    from nearpeak.predict.pretend.said import failed_at

    return f"unsupported: {failed_at(error)}"


def _end(code: int) -> str:
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    return f"the process that ran its step ended {how}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
