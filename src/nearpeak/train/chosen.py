"""Recomputation operator by operator: of what a model's blocks make, what was chosen stays, the rest is made again.

`torch.utils.checkpoint` runs a whole block again at its first need, holds all of it at once, and draws other random
numbers where some random operators were kept and later ones run again. Here saved tensors are replaced by where they
come from (`replay`), and made again one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from nearpeak.errors import UnsupportedError
from nearpeak.plan import BlockRecompute, operator_key
from nearpeak.train.replay import Call, Made, Outside, Part, generator_state, release, require, tensors_of, with_each

__all__ = ["Choices", "Recomputation", "apply_chosen"]

PRODUCTS = frozenset(["mm", "bmm", "addmm", "baddbmm", "convolution", "attention", "_scaled_mm", "_grouped_mm"])
"""Operators by which a plan is told from one for another model."""
NEVER_AGAIN = ("batch_norm", "empty", "rand")
"""In the names of operators that change more than they return, or whose result others fill in."""


class Choices(Protocol):
    """Who says what is kept."""

    def begin(self) -> None:
        """A forward of the model begins."""

    def choices(self, block: str, operator: str, tensors: int) -> str:
        """k, r or h for each tensor that an operator of this block has made; what is left out is kept."""
        ...

    def end(self) -> None:
        """It has ended without an error."""


class PlannedChoices:
    """As a plan has them. A block with other products than the plan knows is refused; what stands between them may
    differ, as with a mask and without: a tensor that the plan does not know is kept."""

    def __init__(self, blocks: Iterable[BlockRecompute]) -> None:
        self._planned: dict[str, list[tuple[str, str]]] = {
            module: [_split(each) for each in block.operators] for block in blocks for module in block.modules
        }
        self._next: dict[str, int] = {}

    def begin(self) -> None:
        self._next = dict.fromkeys(self._planned, 0)

    def choices(self, block: str, operator: str, tensors: int) -> str:
        """Those of the next operator of this name before the next product, of the next product if it is one."""
        planned, position = self._planned[block], self._next[block]
        while position < len(planned):
            name, choices = planned[position]
            position += 1
            if name == operator:
                self._next[block] = position
                return choices
            if name in PRODUCTS:
                break
        if operator in PRODUCTS:
            raise _stale(block, operator, planned, self._next[block])
        return ""

    def end(self) -> None:
        """Nothing may be left of a block that ran."""
        for block, position in self._next.items():
            left = [name for name, _ in self._planned[block][position:] if name in PRODUCTS]
            if position and left:
                raise _stale(block, "nothing", self._planned[block], position)


def _split(entry: str) -> tuple[str, str]:
    name, _, choices = entry.rpartition(":")
    return name, choices


def _stale(block: str, called: str, planned: list[tuple[str, str]], position: int) -> UnsupportedError:
    products = [name for name, _ in planned if name in PRODUCTS]
    passed = sum(name in PRODUCTS for name, _ in planned[:position])
    expected = products[passed] if passed < len(products) else "nothing"
    return UnsupportedError(
        f"recompute='chosen': block {block} calls {called} as its product {passed + 1}, the plan has {expected}: "
        "it was made for another model, version, precision or device. Choose anew: "
        "nearpeak predict memory … --recompute auto."
    )


class Recomputation:
    """Recomputation on a model: `forward` of the model and of its blocks are wrapped until `remove`."""

    def __init__(self, model: torch.nn.Module, blocks: Iterable[str], choices: Choices) -> None:
        self._model, self._choices = model, choices
        self._recorder: _Recorder | None = None
        self._wrapped: list[tuple[torch.nn.Module, Any]] = []
        for path, module in _modules(model, blocks).items():
            self._wrap(module, functools.partial(self._in_block, path))
        self._wrap(model, self._in_model)

    def remove(self) -> None:
        """The model is as it was."""
        for module, forward in reversed(self._wrapped):
            if forward is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward

    def _wrap(self, module: torch.nn.Module, around: Callable[..., Any]) -> None:
        self._wrapped.append((module, module.__dict__.get("forward")))
        # Who asks for the arguments that a model takes gets those of its own forward.
        module.forward = functools.update_wrapper(functools.partial(around, module.forward), module.forward)

    def _in_model(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self._recorder is not None:
            return forward(*args, **kwargs)
        self._choices.begin()
        self._recorder = recorder = _Recorder(self._choices, _device_of(self._model))
        try:
            with recorder, torch.autograd.graph.saved_tensors_hooks(recorder.pack, _unpack):
                result = forward(*args, **kwargs)
        finally:
            self._recorder = None
            recorder.forget()  # whoever still holds it, what is kept lives for backward alone
        self._choices.end()
        return result

    def _in_block(self, path: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if recorder is None or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        outer, recorder.block = recorder.block, path
        try:
            return forward(*args, **kwargs)
        finally:
            recorder.block = outer


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _modules(model: torch.nn.Module, paths: Iterable[str]) -> dict[str, torch.nn.Module]:
    """All of them are there, each once, before any is changed."""
    found: dict[str, torch.nn.Module] = {}
    path_of: dict[int, str] = {}
    for path in paths:
        module = _module(model, path)
        if id(module) in path_of:
            raise UnsupportedError(
                f"recompute='chosen': {path_of[id(module)]} and {path} are the same module of {type(model).__name__}: "
                "name each block of the plan once, under one path."
            )
        found[path], path_of[id(module)] = module, path
    return found


def _module(model: torch.nn.Module, path: str) -> torch.nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise UnsupportedError(
            f"recompute='chosen': {type(model).__name__} has no module {path}: the plan was made for another model."
        ) from None


class _Recorder(TorchDispatchMode):
    """Remembers the calls of one forward: who made what, of what."""

    def __init__(self, choices: Choices, device: torch.device) -> None:
        super().__init__()
        self.block: str | None = None
        self._choices, self._device = choices, device
        self._made: dict[int, tuple[StorageWeakRef, Made]] = {}
        """By address of the storage; the weak reference keeps the address from being used again."""

    def pack(self, tensor: torch.Tensor) -> Outside | Part:
        """What autograd keeps in place of a tensor that it saves; of those, it no longer checks the version."""
        made = self._maker(tensor)
        if made is None:
            return Outside(tensor.detach())  # with its place in the graph, it would hold the node that saves it
        require(made)
        return Part(made, tensor)

    def forget(self) -> None:
        """Forward has ended: what nobody saved need not stay, nor what only that was made of."""
        calls = list({id(made.call): made.call for _, made in self._made.values()}.values())
        self._made.clear()
        while calls:
            calls.pop().forget_if_kept()  # the last first: each may be the only one to ask for results of earlier ones

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = _facts(func)
        if facts.changes:
            self._refuse_changes(func, args, kwargs)
        if facts.casts and _is_weight(args[0]):
            return self._cast(func, args, kwargs)
        if self.block is None or facts.is_view:
            return func(*args, **kwargs)
        operands = tensors_of((args, kwargs))
        state = generator_state(self._device) if facts.random else None
        remembered = with_each((args, kwargs), self._remembered)
        out = func(*args, **kwargs)
        self._remember(Call(func, remembered, self._device, state), operands, tensors_of(out))
        return out

    def _cast(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """The weight stays anyway: its cast is made again, wherever it was made first."""
        out = func(*args, **kwargs)
        if _in_one_piece(args[0]) and out.untyped_storage()._cdata != args[0].untyped_storage()._cdata:
            call = Call(func, with_each((args, kwargs), self._remembered), self._device, None)
            made = Made(call, 0, out.dtype, holds=False)
            self._made[out.untyped_storage()._cdata] = StorageWeakRef(out.untyped_storage()), made
        return out

    def _remember(self, call: Call, operands: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Each new storage among the results belongs to this call from now on, on the device whose random numbers are
        remembered: what another holds stays."""
        known = {each.untyped_storage()._cdata for each in operands if _in_one_piece(each)}
        new: dict[int, int] = {}
        for place, result in enumerate(results):
            if not _in_one_piece(result):
                continue
            storage = result.untyped_storage()
            if storage._cdata not in known and storage.nbytes() and result.device == self._device:
                new.setdefault(storage._cdata, place)
        if not new:
            return
        facts = _facts(call.func)
        chosen = self._choices.choices(self.block or "", facts.key, len(new))
        again = facts.again and call.arguments[1].get("generator") is None
        for index, (key, place) in enumerate(new.items()):
            choice = chosen[index] if index < len(chosen) and again else "k"
            made = Made(call, place, results[place].dtype, holds=choice == "h")
            if choice == "k":
                made.kept = _detached(results[place])
            self._made[key] = StorageWeakRef(results[place].untyped_storage()), made
        call.forget_if_kept()

    def _maker(self, tensor: torch.Tensor) -> Made | None:
        """Who made the storage of a tensor, if it can be found again in it."""
        known = self._made.get(tensor.untyped_storage()._cdata) if _in_one_piece(tensor) else None
        if known is None or known[0].expired() or tensor.is_conj() or tensor.is_neg():
            return None
        made = known[1]
        return made if made.dtype == tensor.dtype else None

    def _remembered(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = self._maker(leaf)
        return Outside(leaf) if made is None else Part(made, leaf)

    def _refuse_changes(self, func: Any, args: Any, kwargs: Any) -> None:
        """What is changed in place has to be kept: computing it again would give what it was before."""
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for tensor in tensors_of(value):
                made = self._maker(tensor)
                if made is not None and made.kept is None:
                    raise UnsupportedError(
                        f"recompute='chosen': {func.name()} changes a result of {made.call.func.name()} in place, "
                        "which the plan computes again: it was made for another model. Choose the recomputation anew."
                    )


def _unpack(saved: Outside | Part) -> torch.Tensor:
    if isinstance(saved, Outside):
        return saved.content()
    tensor = saved.tensor()
    release(saved.made)
    return tensor


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of an operator, whatever its arguments."""

    key: str
    is_view: bool
    changes: bool
    """Whether it writes to an argument."""
    random: bool
    casts: bool
    again: bool
    """Whether it may run again. Operators of other libraries may hold state or draw numbers that nobody sees."""


@functools.cache
def _facts(func: Any) -> _Facts:
    changes = func._schema.is_mutable
    return _Facts(
        key=operator_key(func.name().removeprefix("aten::")),
        is_view=func.is_view,
        changes=changes,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        casts=func is torch.ops.aten._to_copy.default,
        again=func.namespace == "aten" and not changes and not any(word in func._schema.name for word in NEVER_AGAIN),
    )


def _in_one_piece(tensor: torch.Tensor) -> bool:
    """Sparse and nested tensors have no storage of their own: they stay, like what no block made."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _is_weight(tensor: torch.Tensor) -> bool:
    """Autocast casts a weight at its first use, in whichever block that is, and keeps that for all."""
    return tensor.is_leaf and tensor.requires_grad and tensor._base is None


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without its place in the graph (that would be a cycle), which still counts changes in place."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):  # pyright: ignore[reportAttributeAccessIssue]
        return tensor.detach()


def apply_chosen(model: torch.nn.Module, blocks: Iterable[BlockRecompute | Mapping[str, Any]]) -> Recomputation:
    """Put a plan's recomputation on a model."""
    planned = [each if isinstance(each, BlockRecompute) else _from_table(each) for each in blocks]
    return Recomputation(model, [module for block in planned for module in block.modules], PlannedChoices(planned))


def _from_table(table: Mapping[str, Any]) -> BlockRecompute:
    return BlockRecompute(modules=tuple(table["modules"]), operators=tuple(table["operators"]))
