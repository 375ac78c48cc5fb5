"""Hooks of torch itself: backward, updates, reading values, copies, saving, collectives. Few, and each a few lines.

All of them pass through at once when the probe is not at work, and on threads other than the training's.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from threading import get_ident
from typing import Any

from nearpeak.observe.batches import BatchMeter
from nearpeak.observe.boundary import Boundary
from nearpeak.observe.patches import Patches
from nearpeak.observe.phases import CHECKPOINT, COMMUNICATION, COPY, EVALUATION, INPUT, OPTIMIZER
from nearpeak.observe.stacks import Spot, read_stack
from nearpeak.observe.steps import StepWatch

__all__ = ["TorchHooks"]

now = time.perf_counter_ns

READS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)
SETTLED_STEPS = 5
"""Steps after which the set-up is taken to stay as it is."""
MOST_SITES = 256
"""Places that read values; further ones are counted, not told apart."""


class Site:
    """One place that reads values from tensors."""

    __slots__ = ("reads", "spent_ns", "stack")

    def __init__(self, stack: tuple[Spot, ...]) -> None:
        self.reads = self.spent_ns = 0
        self.stack = stack


class TorchHooks:
    """Between torch and the step watch."""

    def __init__(self, watch: StepWatch, boundary: Boundary, patches: Patches) -> None:
        self._watch, self._boundary, self._patches = watch, boundary, patches
        self.sites: dict[tuple[Any, int], Site] = {}
        self.on_new_optimizer: Any = None
        """Called with an optimizer after its first update, before the step is closed."""
        self.parallel: list[weakref.ref[Any]] = []
        """Wrappers that exchange gradients inside the backward pass."""
        self.scaler_seen = False
        self.autocast_dtype: str | None = None
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handles: list[Any] = []
        self._meter = BatchMeter()
        self._collecting_since = 0
        self._compiler: tuple[Any, Any, Any] | None = None
        self._counted_forward = False
        self._scale: float | None = None
        self._skip_told = False

    def install(self, torch: Any) -> None:
        """After torch was imported."""
        self._hook_backward(torch)
        self._hook_updates(torch)
        self._hook_scaler(torch.amp.grad_scaler.GradScaler)
        self._hook_reads(torch.Tensor)
        if torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None:
            self._hook_copies(torch)
        self._hook_saving(torch)
        self._hook_evaluation(torch.nn.Module)
        if torch.distributed.is_available():
            self._hook_collectives(torch.distributed)
        self._hook_collector()

    def remove(self) -> None:
        """What is not a patch."""
        for handle in self._handles:
            handle.remove()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        if self._compiler is not None:
            handler, starts, ends = self._compiler
            for callbacks, ours in ((handler.start_callbacks, starts), (handler.end_callbacks, ends)):
                if ours in callbacks:  # the compiler may have been reset meanwhile
                    callbacks.remove(ours)

    # The model's calls

    def forward_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The outermost module is called."""
        watch = self._watch
        watch.model_known = True
        gradients = sys.modules["torch"].is_grad_enabled()
        if gradients and watch.steps < SETTLED_STEPS:
            self._look_at_autocast()
        watch.forward_begins(id(module), gradients, module.training)
        if watch.without_loader and gradients and not self._counted_forward:
            self._counted_forward = True
            watch.batch_given(*self._meter.measure((*args, kwargs), watch.steps))

    def _look_at_autocast(self) -> None:
        torch = sys.modules["torch"]
        for kind in ("cuda", "cpu"):
            if torch.is_autocast_enabled(kind):
                self.autocast_dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    # Backward and update

    def _hook_backward(self, torch: Any) -> None:
        original, boundary = torch.autograd.backward, self._boundary
        begins, ends = boundary.guard(self._backward_begins), boundary.guard(self._backward_ends)

        def backward(*args: Any, **kwargs: Any) -> Any:
            if boundary.active and get_ident() != boundary.thread:
                self._consider_thread()
            begins(args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                ends()

        self._patches.put(torch.autograd, "backward", backward)

    def _backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        exchanges = None
        if self.parallel and not self._watch.in_backward:
            alive = [wrapper for each in self.parallel if (wrapper := each()) is not None]
            exchanges = any(each.require_backward_grad_sync for each in alive)
            if exchanges:
                self._tell_when_ready(args[0] if args else kwargs.get("tensors"))
        self._watch.backward_begins(exchanges)

    def _tell_when_ready(self, losses: Any) -> None:
        """The engine calls back when it has computed all gradients: the first in line, so before the wrapper waits
        for the exchange, which lines up when its last bucket is on its way."""
        engine = sys.modules["torch"].autograd.Variable._execution_engine
        ready = self._boundary.guard_anywhere(self._watch.gradients_ready)

        def line_up(gradient: Any) -> None:
            engine.queue_callback(ready)

        loss = losses if hasattr(losses, "register_hook") else next(iter(losses), None)
        if loss is not None and loss.requires_grad and not loss.is_leaf:
            loss.register_hook(self._boundary.guard_anywhere(line_up))

    def _backward_ends(self) -> None:
        self._counted_forward = False
        self._watch.backward_ends()

    def _consider_thread(self) -> None:
        """The loop runs on another thread than the main one, which has made no step."""
        if not self._watch.steps and not self._watch.in_backward:
            self._boundary.thread = get_ident()

    def _hook_updates(self, torch: Any) -> None:
        begins = self._boundary.guard(self._watch.update_begins)
        ends = self._boundary.guard(self._update_ends)

        def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
            begins(id(optimizer))

        def after_update(optimizer: Any, args: Any, kwargs: Any) -> None:
            ends(optimizer)

        module = sys.modules["torch.optim.optimizer"]  # torch.optim hides its own module
        self._handles.append(module.register_optimizer_step_pre_hook(before_update))
        self._handles.append(module.register_optimizer_step_post_hook(after_update))
        self.hook_span(module.Optimizer, "zero_grad", OPTIMIZER)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self.hook_span(torch.nn.utils, name, OPTIMIZER)

    def _update_ends(self, optimizer: Any) -> None:
        key = id(optimizer)
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            if self.on_new_optimizer is not None:
                self.on_new_optimizer(optimizer)
        self._watch.update_ends(key)

    def _hook_scaler(self, kind: Any) -> None:
        step, update, boundary = kind.step, kind.update, self._boundary
        begins, ends = boundary.guard(self._scaled_begins), boundary.guard(self._scaled_ends)
        updated = boundary.guard(self._scale_updated)

        def scaled_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            updates = begins(scaler)
            result = step(scaler, optimizer, *args, **kwargs)
            if updates is not None:
                ends(optimizer, updates)
            return result

        def scale_update(scaler: Any, *args: Any, **kwargs: Any) -> None:
            update(scaler, *args, **kwargs)
            updated(scaler)

        self._patches.put(kind, "step", scaled_step)
        self._patches.put(kind, "update", scale_update)
        self.hook_span(kind, "unscale_", OPTIMIZER)

    def _scaled_begins(self, scaler: Any) -> int | None:
        if not scaler.is_enabled():
            return None
        self.scaler_seen = True
        self._watch.enter(OPTIMIZER)
        return self._watch.updates

    def _scaled_ends(self, optimizer: Any, updates: int) -> None:
        if self._watch.updates == updates:
            self._skip_told = True
            self._watch.update_skipped(id(optimizer))

    def _scale_updated(self, scaler: Any) -> None:
        """Where the scale is on a device it is not read: that would wait for it."""
        scale = getattr(scaler, "_scale", None)
        if scale is None or not scaler.is_enabled() or not scale.is_cpu:
            return
        self.scale_known(float(scale.numpy().item()))

    def scale_known(self, value: float) -> None:
        """The loss scale from here on; that it fell tells of an overflow."""
        fell = self._scale is not None and value < self._scale
        self._watch.scaled(value, skipped=fell and not self._skip_told)
        self._scale, self._skip_told = value, False

    # Reading values, copying

    def _hook_reads(self, tensor: Any) -> None:
        for name in READS:
            self._hook_read(tensor, name)

    def _hook_read(self, tensor: Any, name: str) -> None:
        original, boundary, clock = getattr(tensor, name), self._boundary, self._watch.clock
        quiet, frame_of = (INPUT, EVALUATION, CHECKPOINT), sys._getframe
        told = boundary.guard(self._read)

        def read(self: Any, *args: Any) -> Any:
            phase = clock.current
            if not boundary.active or phase in quiet or (phase == OPTIMIZER and self.is_cpu):
                return original(self, *args)
            began_ns = now()
            value = original(self, *args)
            told(began_ns, now(), frame_of(1))
            return value

        self._patches.put(tensor, name, read)

    def _read(self, began_ns: int, ended_ns: int, frame: Any) -> None:
        self._watch.synced(began_ns, ended_ns)
        key = (frame.f_code, frame.f_lineno)
        site = self.sites.get(key)
        if site is None:
            if len(self.sites) >= MOST_SITES:
                return
            site = self.sites[key] = Site(read_stack(frame))
        site.reads += 1
        site.spent_ns += ended_ns - began_ns

    def _hook_copies(self, torch: Any) -> None:
        for name in ("to", "cuda", "cpu"):
            self._hook_copy(torch.Tensor, name)
        self._hook_wait(torch.cuda, "synchronize")
        self._hook_wait(torch.cuda.Event, "synchronize")
        self._hook_wait(torch.cuda.Stream, "synchronize")

    def _hook_copy(self, tensor: Any, name: str) -> None:
        original, boundary, frame_of = getattr(tensor, name), self._boundary, sys._getframe
        told = boundary.guard(self._copied)

        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not boundary.active:
                return original(self, *args, **kwargs)
            began_ns = now()
            result = original(self, *args, **kwargs)
            if result is not self and result.is_cuda is not self.is_cuda:
                told(self, result, began_ns, now(), frame_of(1))
            return result

        self._patches.put(tensor, name, copy)

    def _copied(self, source: Any, result: Any, began_ns: int, ended_ns: int, frame: Any) -> None:
        if result.is_cuda:
            size = source.numel() * source.element_size()
            self._watch.copied(began_ns, ended_ns, size, source.is_cpu and not source.is_pinned(), COPY)
        elif self._watch.clock.current not in (INPUT, EVALUATION, CHECKPOINT):
            self._read(began_ns, ended_ns, frame)

    def _hook_wait(self, owner: Any, name: str) -> None:
        original, frame_of = getattr(owner, name), sys._getframe
        told = self._boundary.guard(self._read)

        def wait(*args: Any, **kwargs: Any) -> Any:
            began_ns = now()
            result = original(*args, **kwargs)
            told(began_ns, now(), frame_of(1))
            return result

        self._patches.put(owner, name, wait)

    # Spans

    def hook_span(self, owner: Any, name: str, phase: int) -> None:
        """All the time inside a function belongs to a phase; inside a saving or an evaluation it belongs to that."""
        original = getattr(owner, name)
        enter, leave = self._boundary.guard(self._watch.enter), self._boundary.guard(self._watch.leave)

        def spanned(*args: Any, **kwargs: Any) -> Any:
            before = enter(phase)
            try:
                return original(*args, **kwargs)
            finally:
                if before is not None:
                    leave(before)

        self._patches.put(owner, name, spanned)

    def hook_event(self, owner: Any, name: str, phase: int, kind: str) -> None:
        """The same, and each call is an event of its own."""
        original = getattr(owner, name)
        begins = self._boundary.guard(self._watch.span_begins)
        ends = self._boundary.guard(self._watch.span_ends)

        def spanned(*args: Any, **kwargs: Any) -> Any:
            token = begins(phase)
            try:
                return original(*args, **kwargs)
            finally:
                if token is not None:
                    ends(token, kind)

        self._patches.put(owner, name, spanned)

    def _hook_saving(self, torch: Any) -> None:
        self.hook_event(torch, "save", CHECKPOINT, "checkpoint")

    def _hook_collectives(self, distributed: Any) -> None:
        for name in COLLECTIVES:
            if hasattr(distributed, name):
                self.hook_span(distributed, name, COMMUNICATION)

    def _hook_evaluation(self, module: Any) -> None:
        original = module.eval
        called = self._boundary.guard(self._watch.evaluation_called)

        def eval(self: Any) -> Any:
            called(self.training)
            return original(self)

        self._patches.put(module, "eval", eval)

    # Python's own

    def _hook_collector(self) -> None:
        self._collected = self._boundary.guard(self._collect)
        gc.callbacks.append(self._collected)

    def _collect(self, moment: str, info: Any) -> None:
        if moment == "start":
            self._collecting_since = now()
        elif self._collecting_since:
            self._watch.tally.collections += 1
            self._watch.tally.collect_ns += now() - self._collecting_since
            self._collecting_since = 0

    def hook_compiler(self, module: Any) -> None:
        """`module` is torch._dynamo.callback."""
        began: list[int] = []
        handler = module.callback_handler
        starts = self._boundary.guard(lambda args: began.append(now()))
        ends = self._boundary.guard(lambda args: self._compiled(began, args))
        handler.register_start_callback(starts)
        handler.register_end_callback(ends)
        self._compiler = handler, starts, ends

    def _compiled(self, began: list[int], args: Any) -> None:
        if not began:
            return
        began_ns = began.pop()
        began.clear()
        spent_ns = now() - began_ns
        self._watch.tally.compilations += 1
        self._watch.tally.compile_ns += spent_ns
        trigger = getattr(args, "callback_trigger", None)
        self._watch.happened(
            "compile", began_ns, spent_ns, id=str(getattr(args, "compile_id", "")), trigger=getattr(trigger, "name", "")
        )
