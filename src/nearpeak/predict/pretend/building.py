"""Makes a model without spending memory or time on its weights, and puts it on the pretend device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.values import KnownValues

__all__ = ["building", "to_device"]

SMALL_ELEMENTS = 1 << 16
"""Tensors up to this size are made for real while a model is built: schedules and index tables are read by it."""


class _Sparing(TorchDispatchMode):
    """Large tensors are made without data, small ones with: constructors read values such as drop rates."""

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_large(func, args, kwargs):
            with self._fake:
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _is_large(self, func: Any, args: Any, kwargs: Any) -> bool:
        leaves = tree_leaves((args, kwargs))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        if any(isinstance(each, FakeTensor) for each in tensors):
            return True
        if tensors:
            return sum(each.numel() for each in tensors) > SMALL_ELEMENTS
        return _made_elements(func, args) > SMALL_ELEMENTS


def _made_elements(func: Any, args: Any) -> int:
    """Elements of what a factory makes from a shape or a range."""
    first = args[0] if args else 0
    if isinstance(first, list | tuple | torch.Size):
        return torch.Size(first).numel() if all(isinstance(each, int) for each in first) else 0
    if func._overloadpacket is torch.ops.aten.arange:
        numbers = [each for each in args if isinstance(each, int | float)]
        return int(numbers[-1] if len(numbers) == 1 else numbers[1] - numbers[0]) if numbers else 0
    if func._overloadpacket is torch.ops.aten.eye:
        return int(first) ** 2
    return 0


@contextlib.contextmanager
def building(fake: FakeTensorMode) -> Iterator[None]:
    """Construct a model in here."""
    with _without_initialisation(), _converting_in_place(), _Sparing(fake):
        yield


@contextlib.contextmanager
def _converting_in_place() -> Iterator[None]:
    """`Module.to` swaps tensors without data, which fails where anybody holds a weak reference to one."""
    plain = torch.nn.Module._apply

    def convert(self: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        for module in self.modules() if recurse else (self,):
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    _convert(module, name, tensor, function)
        return self

    torch.nn.Module._apply = convert  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module._apply = plain  # type: ignore[method-assign]


def _convert(module: torch.nn.Module, name: str, tensor: torch.Tensor, function: Any) -> None:
    """Of the same object, so that tied parameters stay tied."""
    with torch.no_grad():
        made = function(tensor)
    if made is tensor:
        return
    if name in module._buffers:
        module._buffers[name] = made
    elif type(made) is type(tensor.data):
        tensor.data = made
    else:  # with data before, without after, or the other way round
        module._parameters[name] = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)


@contextlib.contextmanager
def _without_initialisation() -> Iterator[None]:
    """Filling weights with random numbers takes long and changes nothing here."""
    from torch.nn import init

    names = [name for name in dir(init) if name.endswith("_") and not name.startswith("_")]
    saved = {name: getattr(init, name) for name in names}
    for name in names:
        setattr(init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, function in saved.items():
            setattr(init, name, function)


def to_device(
    model: torch.nn.Module, dtype: torch.dtype | None, values: KnownValues, *, channels_last: bool = False
) -> None:
    """Move parameters and buffers, in the order in which `Module.to` does; tied ones stay tied.

    `dtype` is the precision of floating point parameters, None keeps theirs. Buffers keep values that they have.
    """
    moved: dict[int, Any] = {}
    for module in _bottom_up(model):
        _move(module._parameters, moved, dtype, channels_last)
        _move(module._buffers, moved, dtype, channels_last)
    for before, after in moved.values():
        if not isinstance(before, torch.nn.Parameter | FakeTensor):
            values.know(after, before)


def _bottom_up(module: torch.nn.Module, seen: set[int] | None = None) -> Iterator[torch.nn.Module]:
    """`Module.to` moves a module's children before its own tensors."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    for child in module._modules.values():
        if child is not None:
            yield from _bottom_up(child, seen)
    yield module


def _move(tensors: dict[str, Any], moved: dict[int, Any], dtype: torch.dtype | None, channels_last: bool) -> None:
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if id(tensor) not in moved:
            moved[id(tensor)] = (tensor, _on_device(tensor, dtype, channels_last))
        tensors[name] = moved[id(tensor)][1]


def _on_device(tensor: torch.Tensor, dtype: torch.dtype | None, channels_last: bool) -> torch.Tensor:
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if channels_last and tensor.dim() == 4:  # as `Module.to(memory_format=…)` does with weights of images
        made = torch.empty(tensor.shape, dtype=kind, device=DEVICE, memory_format=torch.channels_last)
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=DEVICE)
    if isinstance(tensor, torch.nn.Parameter):
        parameter = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        marks = {name: value for name, value in tensor.__dict__.items() if name not in parameter.__dict__}
        vars(parameter).update(marks)  # such as those by which optimizers leave out weight decay
        return parameter
    return made
