"""Sees every operator on the pretend device, and writes down what it allocates, frees, computes and moves."""

from __future__ import annotations

import weakref
from itertools import zip_longest
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from nearpeak.predict.pretend.answers import answer, in_places
from nearpeak.predict.pretend.autocast import casting
from nearpeak.predict.pretend.convolution import in_cudnn_format
from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.flops import operator_flops
from nearpeak.predict.pretend.hidden import HiddenMemory
from nearpeak.predict.pretend.modules import ModuleStack
from nearpeak.predict.pretend.said import assumed, place
from nearpeak.predict.pretend.trials import tried_bytes
from nearpeak.predict.pretend.values import KnownValues
from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

__all__ = ["Tracker"]

aten = torch.ops.aten


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results, which stand in lists and tuples at most."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, list | tuple):
        return []
    return [tensor for each in value for tensor in tensors_in(each)]


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """What changes lists of tensors in place makes nothing, and torch takes long to find that out."""
    in_place = func._schema.name.startswith(("aten::_foreach_", "aten::_fused_")) and not func._schema.returns
    if in_place and args[0] and args[0][0].device.type == DEVICE:
        return None
    return func(*args, **kwargs)


class Tracker(TorchDispatchMode):
    """The recorder; enter it inside FakeTensorMode."""

    def __init__(self, modules: ModuleStack, hidden: HiddenMemory) -> None:
        super().__init__()
        self.modules, self.hidden = modules, hidden
        self.values = KnownValues()
        self._place = place()
        self.phase, self.step = "build", 0
        self._bytes: list[int] = []
        self._meta: list[tuple[str, str, int]] = []
        """(module, phase, operator) of each allocation."""
        self._category: dict[int, str] = {}
        self._operators: list[Operator] = []
        self._events: list[int] = []
        self._tried: list[int] = []
        self._segments: list[Segment] = []
        self._of_storage: dict[int, int] = {}
        self._freed_in: dict[int, str] = {}

    # -- what the step tells -------------------------------------------------------------------------------------------

    def enter(self, phase: str, step: int) -> None:
        """A phase begins."""
        self._close()
        self.phase, self.step = phase, step

    def number_of(self, tensor: torch.Tensor | None) -> int | None:
        """The allocation a tensor lies in."""
        return None if tensor is None else self._of_storage.get(tensor.untyped_storage()._cdata)

    def categorise(self, tensors: Any, category: str) -> None:
        """Say what tensors are for."""
        for tensor in tensors:
            number = self.number_of(tensor)
            if number is not None:
                self._category[number] = category

    def place(self, tensor: torch.Tensor | None, module: str) -> None:
        """Say which module a tensor belongs to: parameters, their gradients and optimizer state."""
        number = self.number_of(tensor)
        if number is not None:
            _, phase, operator = self._meta[number - 1]
            self._meta[number - 1] = (module, phase, operator)

    def finished(self, **counts: Any) -> StepTrace:
        """The recording so far."""
        self._close()
        return StepTrace(
            allocations=tuple(self._allocation(number) for number in range(1, len(self._bytes) + 1)),
            operators=tuple(self._operators),
            segments=tuple(self._segments),
            risks=assumed(),
            tried_bytes=tuple(self._tried),
            **counts,
        )

    # -- what torch tells ----------------------------------------------------------------------------------------------

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would wrap what follows so that it is not compiled: a cost with each operator, where nothing is."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._place.at(func, self.modules.innermost)
        args = in_places(func, args, self)
        operands = tensors_in((*args, *kwargs.values()))
        real = self.values.computed(func, args, kwargs, operands)
        answered, result = answer(func, args, kwargs, real)
        if answered and not isinstance(result, torch.Tensor | tuple):
            return result
        module = self.modules.current(self.phase)
        for size in self.hidden.before(func, args, kwargs, self.phase):
            self._category[self._allocate(size, module)] = "workspace"
        out = result if answered else self._run(func, args, kwargs)
        out, copied = in_cudnn_format(func, args, out)
        results = tensors_in(out)
        if real is not None:
            self.values.know_all(results, tensors_in(real))
        self._record(func, args, kwargs, module, operands, results, copied)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return _run(func, args, kwargs)
        except Exception as error:
            self._place.failed(error)
            raise

    def _record(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        module: str,
        operands: list[torch.Tensor],
        results: list[torch.Tensor],
        copied: int,
    ) -> None:
        on_device = [each for each in results if each.device.type == DEVICE]
        if not on_device and not any(each.device.type == DEVICE for each in operands):
            return
        new = self._make(on_device, self.hidden.in_turn(func, args, results), module)
        throughout = copied + self.hidden.during(func, args, results)
        if throughout:
            self._pass(throughout, module)
        if self.hidden.empties_cache(func, args):
            self._tried.append(tried_bytes(func, args))
            self._events.append(0)
        if func.is_view:
            return
        self._operators.append(
            Operator(
                name=func.name().removeprefix("aten::"),
                module=module,
                phase=self.phase,
                flops=operator_flops(func, args, kwargs, results),
                bytes=sum(each.numel() * each.element_size() for each in (*operands, *on_device)),
                inputs=self._numbers(operands),
                outputs=self._numbers(on_device),
                new=tuple(new),
            )
        )

    def _make(self, results: list[torch.Tensor], in_turn: list[int], module: str) -> list[int]:
        """Numbers of the allocations that results made, each followed by what its kernel takes."""
        new: list[int] = []
        for result, taken in zip_longest(results, in_turn):
            number = None if result is None else self._see(result, module)
            new += [number] if number else []
            if taken:
                self._pass(taken, module)
        return new

    def _pass(self, size: int, module: str) -> None:
        """Memory that is there for the length of a kernel."""
        number = self._allocate(size, module)
        self._category[number] = "workspace"
        self._free(number)

    def _numbers(self, tensors: list[torch.Tensor]) -> tuple[int, ...]:
        found = dict.fromkeys(self.number_of(each) for each in tensors)
        return tuple(number for number in found if number is not None)

    def _see(self, tensor: torch.Tensor, module: str) -> int | None:
        """The number of the allocation a result made, None where it lies in an older one or in nothing."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._of_storage or not isinstance(tensor, FakeTensor) or size == 0:
            return None
        number = self._allocate(int(size), module)
        self._of_storage[key] = number
        weakref.finalize(storage, self._storage_gone, key, number)
        if casting.caching:
            self._category[number] = "autocast_cache"
        return number

    def _storage_gone(self, key: int, number: int) -> None:
        self._of_storage.pop(key, None)
        self._free(number)

    def _allocate(self, size: int, module: str) -> int:
        self._bytes.append(size)
        self._meta.append((module, self.phase, len(self._operators)))
        self._events.append(len(self._bytes))
        return len(self._bytes)

    def _free(self, number: int) -> None:
        self._events.append(-number)
        self._freed_in[number] = self.phase

    def _close(self) -> None:
        if self._events:
            self._segments.append(Segment(self.phase, self.step, tuple(self._events)))
        self._events = []

    def _allocation(self, number: int) -> Allocation:
        module, phase, operator = self._meta[number - 1]
        category = self._category.get(number) or self._inferred(number, phase)
        return Allocation(self._bytes[number - 1], category, module, phase, operator)

    def _inferred(self, number: int, phase: str) -> str:
        if phase == "build":
            return "buffers"
        if phase == "input":
            return "inputs"
        kept = self._freed_in.get(number) != phase
        return "activations" if phase == "forward" and kept else "temporaries"
