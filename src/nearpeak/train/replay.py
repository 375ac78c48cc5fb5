"""Computes again what forward did not keep: operator by operator, when backward asks for it and no earlier.

An operator's call is remembered with where its operands come from. A value that backward needs is made by running those
calls again, back to values that were kept, and nothing else: modules, hooks and casts of autocast do not run again, and
every random operator starts from the state that its generator had the first time, whatever else is kept or skipped.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from nearpeak.errors import UnsupportedError

__all__ = ["Call", "Made", "Outside", "Part", "generator_state", "release", "require", "tensors_of", "with_each"]

Leaf = TypeVar("Leaf")


class Made:
    """A piece of memory that an operator made in a block of the model."""

    __slots__ = ("__weakref__", "call", "computed", "dtype", "held", "holds", "kept", "pending", "place")

    def __init__(self, call: Call, place: int, dtype: torch.dtype, *, holds: bool) -> None:
        self.call, self.place, self.dtype, self.holds = call, place, dtype, holds
        call.made.append(weakref.ref(self))
        self.kept: torch.Tensor | None = None
        """Its content, where it stays in memory for backward."""
        self.held: torch.Tensor | None = None
        """Its content, computed again, for as long as backward needs it."""
        self.pending = 0
        """Saved tensors that still need it, where it is held between them."""
        self.computed = False

    @property
    def present(self) -> torch.Tensor | None:
        """Its content, if that need not be computed."""
        return self.kept if self.kept is not None else self.held

    @property
    def version(self) -> int:
        """How often it was changed in place; what is not kept never was."""
        return 0 if self.kept is None else _version_of(self.kept)

    @property
    def key(self) -> tuple[int, int]:
        return id(self.call), self.place


class Part:
    """A tensor that lies in a `Made`: which part of it, and in what shape."""

    __slots__ = ("made", "offset", "size", "stride", "version")

    def __init__(self, made: Made, tensor: torch.Tensor) -> None:
        self.made, self.version = made, made.version
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """This part, once the whole is there."""
        if self.version != self.made.version:
            raise UnsupportedError(
                f"recompute='chosen': the result of {self.made.call.func.name()} was changed in place after it was "
                "read, so what was read can not be computed again; choose the recomputation anew for this model."
            )
        return whole.as_strided(self.size, self.stride, self.offset)

    def tensor(self) -> torch.Tensor:
        """This part, computed again if it is not there."""
        whole = self.made.present
        if whole is None:
            with _plainly(self.made.call.device):
                whole = _computed(self.made)
        return self.of(whole)


class Outside:
    """What no block made: a parameter, the model's input, a mask."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.version = tensor, _version_of(tensor)

    def content(self) -> torch.Tensor:
        if _version_of(self.tensor) != self.version:
            raise UnsupportedError(
                "recompute='chosen': a tensor of shape "
                f"{tuple(self.tensor.shape)} that forward read was changed in place before backward; change it after "
                "backward, or use recompute='none'."
            )
        return self.tensor


class Call:
    """One call of an operator, which can be run again."""

    __slots__ = ("arguments", "device", "func", "made", "sources", "state")

    def __init__(self, func: Any, arguments: tuple[Any, Any], device: torch.device, state: torch.Tensor | None) -> None:
        self.func, self.arguments = func, arguments
        self.device, self.state = device, state
        self.made: list[weakref.ref[Made]] = []
        """Its results; they know the call, not the call them, or nothing would ever go."""
        parts = _gathered(arguments, Part)
        self.sources = tuple({part.made.key: part.made for part in parts}.values())

    def results(self) -> list[Made]:
        """Those that somebody still may ask for."""
        return [made for made in (reference() for reference in self.made) if made is not None]

    def forget_if_kept(self) -> None:
        """With all results kept that anybody may ask for, it never runs again, and its operands need not stay."""
        if all(made.kept is not None for made in self.results()):
            self.arguments, self.sources, self.state = ((), {}), (), None

    def run(self, values: dict[tuple[int, int], torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that it returns."""

        def operand(leaf: Any) -> Any:
            if isinstance(leaf, Part):
                present = leaf.made.present
                return leaf.of(values[leaf.made.key] if present is None else present)
            return leaf.content() if isinstance(leaf, Outside) else leaf

        args, kwargs = with_each(self.arguments, operand)
        with _generator_at(self.device, self.state):
            return tensors_of(self.func(*args, **kwargs))


def _version_of(tensor: torch.Tensor) -> int:
    """What was made in inference mode counts no changes, and torch lets none happen outside of it."""
    return 0 if tensor.is_inference() else tensor._version


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors among an operator's arguments or results, in order."""
    return _gathered(value, torch.Tensor)


def with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """An operator's arguments with each leaf changed; torch's own trees know more containers, and take longer."""
    if isinstance(value, tuple | list):
        return type(value)([with_each(each, change) for each in value])
    if isinstance(value, dict):
        return {name: with_each(each, change) for name, each in value.items()}
    return change(value)


def _gathered(value: Any, kind: type[Leaf]) -> list[Leaf]:
    found: list[Leaf] = []
    _gather(value, kind, found)  # a function inside this one would be a cycle, and hold what it found
    return found


def _gather(value: Any, kind: type[Leaf], found: list[Leaf]) -> None:
    if isinstance(value, kind):
        found.append(value)
    elif isinstance(value, tuple | list):
        for each in value:
            _gather(each, kind, found)
    elif isinstance(value, dict):
        for each in value.values():
            _gather(each, kind, found)


def require(made: Made) -> None:
    """A saved tensor needs it: what is held on the way to it stays until that was asked for."""
    _along(made, set(), _required)


def release(made: Made) -> None:
    """That saved tensor has been asked for."""
    _along(made, set(), _released)


def _along(made: Made, seen: set[tuple[int, int]], visit: Any) -> None:
    """Go from a value to those it is computed from, until one is kept or held."""
    waiting = [made]
    while waiting:
        each = waiting.pop()
        if each.kept is not None or each.key in seen:
            continue
        seen.add(each.key)
        if each.holds:
            visit(each)
        else:
            waiting += each.call.sources


def _required(made: Made) -> None:
    made.pending += 1
    if made.pending == 1:
        _along_all(made.call.sources, _required)


def _released(made: Made) -> None:
    made.pending -= 1
    if made.pending <= 0:
        made.held = None


def _along_all(sources: tuple[Made, ...], visit: Any) -> None:
    seen: set[tuple[int, int]] = set()
    for source in sources:
        _along(source, seen, visit)


def _computed(target: Made) -> torch.Tensor:
    """Run what leads to it, each intermediate result for no longer than it is read."""
    order = _calls_until(target)
    readers = Counter(source.key for call in order for source in call.sources)
    readers[target.key] += 1
    values: dict[tuple[int, int], torch.Tensor] = {}
    for call in order:
        results = call.run(values)
        for made in call.results():
            _hold(made, results[made.place])
            if readers[made.key]:
                values[made.key] = results[made.place]
        del results
        for source in call.sources:
            readers[source.key] -= 1
            if not readers[source.key]:
                values.pop(source.key, None)
    return values[target.key]


def _calls_until(target: Made) -> list[Call]:
    """What has to run, operands before results."""
    order: list[Call] = []
    done: set[int] = set()
    waiting: list[tuple[Made, bool]] = [(target, False)]
    while waiting:
        made, operands_done = waiting.pop()
        if made.present is not None:
            continue
        if operands_done and id(made.call) not in done:
            done.add(id(made.call))
            order.append(made.call)
        elif id(made.call) not in done:
            waiting.append((made, True))
            waiting += [(source, False) for source in made.call.sources]
    return order


def _hold(made: Made, tensor: torch.Tensor) -> None:
    if made.kept is not None or not made.holds or made.pending <= 0:
        return
    made.held = tensor
    if not made.computed:
        made.computed = True
        _along_all(made.call.sources, _released)


@contextlib.contextmanager
def _plainly(device: torch.device) -> Iterator[None]:
    """Operators run as they were recorded, below autograd and autocast."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for device_type in {"cpu", device.type}:
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


@contextlib.contextmanager
def _generator_at(device: torch.device, state: torch.Tensor | None) -> Iterator[None]:
    """The device's generator stands where it stood, and afterwards where it stands now."""
    if state is None:
        yield
        return
    before = generator_state(device)
    _set_generator(device, state)
    try:
        yield
    finally:
        _set_generator(device, before)


def generator_state(device: torch.device) -> torch.Tensor:
    """Of the generator that operators on this device draw from."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def _set_generator(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
