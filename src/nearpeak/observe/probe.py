"""`Probe`: everything that watches one process, and how it gets in: `install` is called once torch was imported."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from nearpeak.observe.attach import settings
from nearpeak.observe.boundary import Boundary
from nearpeak.observe.device import device_clock, read_memory
from nearpeak.observe.facts import read_facts
from nearpeak.observe.hooks import TorchHooks
from nearpeak.observe.loader_hooks import LoaderHooks
from nearpeak.observe.models import CallWatch, find_models, find_parallel
from nearpeak.observe.patches import Patches
from nearpeak.observe.recorder import Recorder, Sources
from nearpeak.observe.steps import StepWatch
from nearpeak.observe.system import ResidentMemory
from nearpeak.observe.tally import Tally
from nearpeak.observe.workers import WorkerHooks
from nearpeak.recording.process_facts import ProcessFacts
from nearpeak.recording.schema import ProcessRecord

__all__ = ["HOOKS", "Probe", "compiler_imported", "current", "install"]

HOOKS = {
    "torch": "nearpeak.observe.probe:install",
    "torch._dynamo.callback": "nearpeak.observe.probe:compiler_imported",
    "transformers.trainer": "nearpeak.observe.frameworks:transformers_imported",
    "lightning.pytorch.trainer.trainer": "nearpeak.observe.frameworks:lightning_imported",
    "lightning.pytorch.loops.evaluation_loop": "nearpeak.observe.frameworks:lightning_evaluation_imported",
    "pytorch_lightning.trainer.trainer": "nearpeak.observe.frameworks:lightning_imported",
    "pytorch_lightning.loops.evaluation_loop": "nearpeak.observe.frameworks:lightning_evaluation_imported",
    "accelerate.accelerator": "nearpeak.observe.frameworks:accelerate_imported",
    "safetensors.torch": "nearpeak.observe.frameworks:safetensors_imported",
}
"""What to call after which import."""
MEMORY_EVERY_NS = 100_000_000
"""Memory is read at the end of a step, but not more often than this."""
FACTS_AT = (0, 3, 30)
"""Steps after which the set-up is read: some of it shows late."""
SEARCHED_STEPS = 5
"""Steps in which the module that the loop calls is looked for."""

_current: Probe | None = None


def install(torch: Any) -> None:
    """The hook on torch's import in an attached process."""
    chosen = settings() or {}
    folder = chosen.get("options", {}).get("recording")
    if folder is not None and _current is None:
        start(folder, torch)


def start(folder: str, torch: Any) -> Probe:
    """Watch this process from now on, whoever asks."""
    global _current
    _current = Probe(folder)
    _current.install(torch)
    return _current


def current() -> Probe | None:
    """The probe of this process."""
    return _current


def compiler_imported(module: Any) -> None:
    """The hook on the import of torch's compiler."""
    if _current is not None:
        _current.hooks.hook_compiler(module)


class Probe:
    """One process's."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.boundary = Boundary()
        self.patches = Patches()
        self.watch = StepWatch()
        self.hooks = TorchHooks(self.watch, self.boundary, self.patches)
        self.loaders = LoaderHooks(self.watch, self.boundary, self.patches)
        self.workers = WorkerHooks(folder, self.boundary, self.patches)
        guard = self.boundary.guard
        self.calls = CallWatch(guard(self.hooks.forward_begins), guard(self.watch.forward_ends), self.patches.put)
        self.watch.on_start, self.watch.on_close = self._begin, self._closed
        self.hooks.on_new_optimizer = self._meet
        self._torch: Any = None
        self._memory = ResidentMemory()
        self._reset()

    def _reset(self) -> None:
        self.facts = ProcessFacts()
        self._described: tuple[ProcessFacts, ProcessRecord] | None = None
        self.frameworks: list[Callable[[ProcessFacts], None]] = []
        """What frameworks know of the set-up, asked in the order in which they were met."""
        self._recorder: Recorder | None = None
        # Never to be the reason that a model outlives its training.
        self._models: list[weakref.ref[Any]] = []
        self._optimizer: Callable[[], Any] = lambda: None
        self._started_ns = time.time_ns()
        self._pid = os.getpid()
        self._memory_read_ns = 0

    def install(self, torch: Any) -> None:
        """Put every hook in place."""
        self._torch = torch
        self.hooks.install(torch)
        dataloader = sys.modules["torch.utils.data.dataloader"]
        self.loaders.install(dataloader)
        self.workers.install(dataloader)
        if "torch._dynamo.callback" in sys.modules:
            self.hooks.hook_compiler(sys.modules["torch._dynamo.callback"])
        self.boundary.active = True
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """The child has no recorder thread and has trained nothing; if it trains, it is a process of its own."""
        if _current is not self:
            return
        self.watch.reset()
        self.hooks.sites = {}
        self.boundary.thread = threading.get_ident()
        self._reset()

    def stop(self) -> None:
        """Write the rest, and leave the process as it was found."""
        global _current
        self._finish()
        atexit.unregister(self._finish)
        self.boundary.active = False
        self.patches.undo()
        self.hooks.remove()
        if _current is self:
            _current = None

    def _begin(self) -> None:
        """The first sign of training."""
        sources = Sources(self.watch, self.boundary, self.hooks, self.loaders.worker_pids, self._describe)
        self._recorder = Recorder(self.folder, sources)
        self._recorder.start()
        if "multiprocessing.util" in sys.modules:  # forked processes of it end without atexit
            sys.modules["multiprocessing.util"].Finalize(None, self._finish, exitpriority=-100)

    def _finish(self) -> None:
        if self._recorder is None and self.boundary.fault is not None:
            self._begin()  # it broke before the first step: somebody should know
        if self._recorder is not None and os.getpid() == self._pid:
            self._recorder.stop()

    def _meet(self, optimizer: Any) -> None:
        """An optimizer's first update: which models are these?"""
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        models = find_models(optimizer)
        self._models += [weakref.ref(each) for each in models]
        self.calls.watch(models)
        self.hooks.parallel += [weakref.ref(each) for each in find_parallel(models)]
        distributed = self._torch.distributed
        self.watch.has_peers = distributed.is_available() and distributed.is_initialized()
        if self.watch.device is None:
            self.watch.device = device_clock(self._torch, optimizer)

    def _closed(self, tally: Tally) -> None:
        """A step has ended; on the training thread, so in microseconds."""
        if tally.ended_ns - self._memory_read_ns > MEMORY_EVERY_NS:
            self._memory_read_ns = tally.ended_ns
            tally.rss_bytes = self._memory.read()
            if self.watch.device is not None:
                read_memory(self._torch, tally)
        if tally.index in FACTS_AT:
            self._read_facts()
        if self.watch.model_known or tally.index > SEARCHED_STEPS:
            self.calls.settle()
        elif tally.index:
            self.calls.descend()

    def _read_facts(self) -> None:
        models = [model for each in self._models if (model := each()) is not None]
        facts = read_facts(self._torch, self._optimizer(), models, self.loaders.facts())
        facts.autocast_dtype = self.hooks.autocast_dtype
        facts.grad_scaler = self.hooks.scaler_seen
        for look in self.frameworks:
            look(facts)
        self.facts = facts

    def _describe(self) -> ProcessRecord:
        """Asked for at every writing, and seldom new."""
        if self._described is None or self._described[0] is not self.facts:
            self._described = self.facts, self._describe_anew()
        return self._described[1]

    def _describe_anew(self) -> ProcessRecord:
        rank = _number("RANK")
        return ProcessRecord(
            process=rank or 0,
            pid=self._pid,
            started_ns=self._started_ns,
            host=socket.gethostname(),
            rank=rank,
            local_rank=_number("LOCAL_RANK"),
            world_size=_number("WORLD_SIZE"),
            command=json.dumps(sys.argv),
            facts=self.facts.to_json(),
        )


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
