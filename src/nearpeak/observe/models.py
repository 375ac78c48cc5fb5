"""Finding the models that an optimizer trains, and noticing their calls from outside.

No hook is registered on a module: it would be pickled with the model, copied with it, and traced by its compiler. The
class of the outermost module gets a `__call__` of ours instead, which is in neither its state nor its graph.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["CallWatch", "find_models", "find_parallel", "outermost"]

DEEPEST = 3
"""Levels below an outermost module that nobody calls, before we give up."""


def find_models(optimizer: Any) -> list[Any]:
    """The outermost modules with a parameter that this optimizer updates, of all that exist in the process."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    module = sys.modules["torch"].nn.Module
    # The type alone is asked: an object may lie about its class, and run code while it does.
    modules = [each for each in gc.get_objects() if issubclass(type(each), module) and "_modules" in each.__dict__]
    roots = outermost(modules)
    return [root for root in roots if any(id(parameter) in wanted for parameter in root.parameters())]


def outermost(modules: Iterable[Any]) -> list[Any]:
    """Those that no other one holds."""
    modules = list(modules)
    held = {id(child) for each in modules for child in each._modules.values() if child is not None}
    return [each for each in modules if id(each) not in held]


def find_parallel(models: list[Any]) -> list[Any]:
    """Wrappers among them, or directly inside, that exchange gradients in the backward pass."""
    near = [inner for each in models for inner in (each, *each.children())]
    return [each for each in near if hasattr(each, "require_backward_grad_sync") and hasattr(each, "reducer")]


class CallWatch:
    """Tells of the calls of modules of the classes that it was given."""

    def __init__(
        self,
        begins: Callable[[Any, tuple[Any, ...], dict[str, Any]], object],
        ends: Callable[[], object],
        patch: Callable[[Any, str, Any], object],
    ) -> None:
        self._begins, self._ends, self._patch = begins, ends, patch
        self._watched: set[type] = set()
        self._levels: list[list[Any]] = []

    def watch(self, models: list[Any]) -> None:
        """Watch the calls of these."""
        self._levels.append(models)
        for each in models:
            self._watch_class(type(each))

    def settle(self) -> None:
        """One was called: nothing further is looked for, and no model is kept alive."""
        self._levels.clear()

    def descend(self) -> bool:
        """None was called (a framework calls a method of them instead): watch what they hold."""
        if len(self._levels) >= DEEPEST or not self._levels:
            return False
        children = [child for each in self._levels[-1] for child in each.children() if _trains(child)]
        self.watch(children)
        return bool(children)

    def _watch_class(self, kind: type) -> None:
        if kind in self._watched:
            return
        self._watched.add(kind)
        is_compiling = sys.modules["torch"].compiler.is_compiling
        begins, ends, own = self._begins, self._ends, kind.__dict__.get("__call__")

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            above: Any = super(kind, module)
            inherited = above.__call__ if own is None else own.__get__(module)
            if is_compiling():
                return inherited(*args, **kwargs)
            begins(module, args, kwargs)
            try:
                return inherited(*args, **kwargs)
            finally:
                ends()

        self._patch(kind, "__call__", call)


def _trains(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
