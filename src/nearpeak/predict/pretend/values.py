"""Values of small tensors that follow from nothing unknown: shapes, positions, masks, token ids.

The pretend device has no data, but models read some of what they compute: how many places a mask leaves, which grid an
image has. What is made of known values alone is computed beside the step, on the CPU, and read from there.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["KnownValues"]

LARGEST_BYTES = 1 << 19
"""Of a storage whose values are followed."""
FACTORIES = {
    "aten::arange", "aten::full", "aten::zeros", "aten::ones", "aten::eye", "aten::scalar_tensor", "aten::linspace",
    "aten::tril_indices", "aten::triu_indices", "aten::lift_fresh", "aten::lift_fresh_copy",
}  # fmt: skip
"""Make values from plain arguments."""


class KnownValues:
    """Storages without data → real ones with the values that they would hold."""

    def __init__(self) -> None:
        self._real: dict[int, torch.UntypedStorage] = {}

    def know(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """Say what a tensor holds."""
        storage = tensor.untyped_storage()
        if not isinstance(tensor, FakeTensor) or not 0 < storage.nbytes() <= LARGEST_BYTES or tensor.storage_offset():
            return
        with _for_real():
            held = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            held.copy_(real)
        if storage._cdata not in self._real:
            weakref.finalize(storage, self._real.pop, storage._cdata, None)
        self._real[storage._cdata] = held.untyped_storage()

    def know_all(self, tensors: list[torch.Tensor], real: list[torch.Tensor]) -> None:
        """What an operator made; its views of known tensors are known already."""
        for tensor, held in zip(tensors, real, strict=True):
            if tensor.untyped_storage()._cdata not in self._real:
                self.know(tensor, held)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor with its values, where they are known; it shares them with its other views."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        held = self._real.get(tensor.untyped_storage()._cdata)
        if held is None:
            return tensor.constant
        with _for_real():
            empty = torch.empty(0, dtype=tensor.dtype)
            return empty.set_(held, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[call-overload]

    def computed(self, func: Any, args: Any, kwargs: Any, operands: list[torch.Tensor]) -> Any:
        """What an operator gives for real, None where that is unknown.

        What it changes in place is changed here, too, or no longer known.
        """
        if not self._followed(func, operands):
            self._forget_changed(func, args, kwargs)
            return None
        known: dict[int, torch.Tensor] = {}
        for operand in operands:
            real = self.of(operand)
            if real is None:
                self._forget_changed(func, args, kwargs)
                return None
            known[id(operand)] = real
        try:
            with _for_real():
                return func(*_replaced(args, known), **_replaced(kwargs, known))
        except (RuntimeError, TypeError, IndexError, NotImplementedError):  # the step itself will say so
            self._forget_changed(func, args, kwargs)
            return None

    def _followed(self, func: Any, operands: list[torch.Tensor]) -> bool:
        """Whether it is worth to look: all operands may be known, and none is large."""
        if peek_interpreter_stack() is not None:  # inside of vmap, nothing is computed beside it
            return False
        if not operands:
            return func._schema.name in FACTORIES
        if torch.Tag.nondeterministic_seeded in func.tags or torch.Tag.inplace_view in func.tags:
            return False
        real = self._real
        for each in operands:
            if isinstance(each, FakeTensor):
                if each.constant is None and each.untyped_storage()._cdata not in real:
                    return False
            elif each.numel() * each.element_size() > LARGEST_BYTES:
                return False
        return True

    def _forget_changed(self, func: Any, args: Any, kwargs: Any) -> None:
        if not self._real or not func._schema.is_mutable:
            return
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._forget(value)
        for argument in func._schema.arguments:
            if argument.name in kwargs and argument.alias_info is not None and argument.alias_info.is_write:
                self._forget(kwargs[argument.name])

    def _forget(self, value: Any) -> None:
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, torch.Tensor):
                self._real.pop(each.untyped_storage()._cdata, None)


def _replaced(value: Any, known: dict[int, torch.Tensor]) -> Any:
    """Arguments with known tensors in place of those without data, on the CPU."""
    if isinstance(value, torch.Tensor):
        return known[id(value)]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, dict):
        return {name: _replaced(each, known) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(each, known) for each in value)
    return value


@contextlib.contextmanager
def _for_real() -> Iterator[None]:
    """Tensors made in here have data."""
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        yield
