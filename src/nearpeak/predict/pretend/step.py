"""Runs a training step on the pretend device, phase by phase."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from nearpeak.predict.pretend.building import to_device
from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.said import place
from nearpeak.predict.pretend.tracker import Tracker
from nearpeak.predict.step_trace import StepTrace

__all__ = ["Subject", "run_step"]


@dataclass(slots=True)
class Subject:
    """What is trained, as a source of models makes it."""

    model: torch.nn.Module
    batch: Callable[[], Any]
    """Makes a batch on the pretend device."""
    loss: Callable[[torch.nn.Module, Any], Any]
    """Returns the loss, or (loss, what the training loop keeps beside it)."""
    optimizer: Callable[[torch.nn.Module], Any]
    autocast: torch.dtype | None = None
    weights: torch.dtype | None = None
    """Precision of the parameters; None keeps the model's."""
    micro_batches: int = 1
    clip_norm: float | None = None
    channels_last: bool = False


class _OnDevice(TorchFunctionMode):
    """The user's code says cuda: it gets the pretend device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place().function = func
        if kwargs is None:
            kwargs = {}
        elif _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": DEVICE}
        if func is torch.Tensor.cuda:
            return args[0].to(DEVICE)
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], DEVICE, *args[2:])
        if func is torch.Tensor.backward:
            return self._backward(args, kwargs)
        if (func is torch.tensor or func is torch.as_tensor) and args and isinstance(args[0], list | tuple):
            args = (_read(args[0]), *args[1:])
        return func(*args, **kwargs)

    def _backward(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Recomputed forwards inside it see the same mode."""
        renamed = {("grad_tensors" if name == "gradient" else name): value for name, value in kwargs.items()}
        with self:
            return torch.autograd.backward(args[0], *args[1:], **renamed)


def _read(data: Any) -> Any:
    """Numbers in place of tensors among numbers: torch would read them where nothing can answer."""
    if isinstance(data, torch.Tensor):
        return data.tolist()
    return [_read(each) for each in data] if isinstance(data, list | tuple) else data


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


def run_step(subject: Subject, tracker: Tracker, fake: FakeTensorMode) -> StepTrace:
    """One step, its optimizer twice: `step_trace.repeated` makes several steps of it."""
    model = subject.model
    with torch.autograd.set_multithreading_enabled(False), fake, tracker, _OnDevice():
        tracker.enter("build", 0)
        to_device(model, subject.weights, tracker.values, channels_last=subject.channels_last)
        tracker.categorise(model.parameters(), "parameters")
        _place(tracker, model, None)
        tracker.modules.name(model)
        place().paths = tracker.modules.paths
        model.train()
        optimizer = subject.optimizer(model)
        kept = _forward_and_backward(subject, tracker)
        if subject.micro_batches > 1:
            kept = _forward_and_backward(subject, tracker)  # onto gradients; further ones are like it
        tracker.categorise([parameter.grad for parameter in model.parameters()], "gradients")
        _place(tracker, model, None)
        for step in (0, 1):
            tracker.enter("optimizer", step)
            _update(subject, optimizer)
            tracker.categorise(_state(optimizer), "optimizer_state")
            _place(tracker, model, optimizer)
        tracker.enter("zero_grad", 0)
        optimizer.zero_grad(set_to_none=True)
        counts = _counts(model)
        trace = tracker.finished(**counts)
        del kept
        tracker.enter("after", 0)
    return trace


def _forward_and_backward(subject: Subject, tracker: Tracker) -> Any:
    tracker.enter("input", 0)
    batch = subject.batch()
    tracker.categorise(_tensors(batch), "inputs")
    tracker.enter("forward", 0)
    with _autocast(subject.autocast):
        result = subject.loss(subject.model, batch)
    loss = result[0] if isinstance(result, tuple) else result
    tracker.enter("backward", 0)
    loss.backward()
    return result, batch


@contextlib.contextmanager
def _autocast(dtype: torch.dtype | None) -> Iterator[None]:
    if dtype is None:
        yield
        return
    with torch.amp.autocast(DEVICE, dtype=dtype):
        yield


def _update(subject: Subject, optimizer: Any) -> None:
    if subject.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(subject.model.parameters(), subject.clip_norm, foreach=True)
    optimizer.step()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def _state(optimizer: Any) -> list[torch.Tensor]:
    return [each for state in optimizer.state.values() for each in _tensors(state)]


def _counts(model: torch.nn.Module) -> dict[str, int]:
    parameters = list(model.parameters())
    return {
        "parameters": sum(each.numel() for each in parameters),
        "trainable_parameters": sum(each.numel() for each in parameters if each.requires_grad),
    }


def _place(tracker: Tracker, model: torch.nn.Module, optimizer: Any) -> None:
    """A parameter, its gradient and its state stand under the parameter's module."""
    for name, parameter in model.named_parameters():
        module = name.rpartition(".")[0]
        tracker.place(parameter, module)
        tracker.place(parameter.grad, module)
        for tensor in _tensors(optimizer.state.get(parameter, {})) if optimizer is not None else ():
            tracker.place(tensor, module)
