"""Which module an operator belongs to: in forward by hooks, in backward by the autograd node that forward made."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["ModuleStack"]


class ModuleStack:
    """Follows the calls of modules. One in a process."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        """id of a module → its path in the model"""
        self._stack: list[str] = []
        self._of_node: dict[int, str] = {}
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    def name(self, model: torch.nn.Module) -> None:
        """Learn the paths of the modules of the model that is looked at from now on."""
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._stack.clear()
        self._of_node.clear()

    @property
    def innermost(self) -> str:
        return self._stack[-1] if self._stack else ""

    def current(self, phase: str) -> str:
        """The module whose operator runs now."""
        if phase == "forward":
            self._of_node[_last_node()] = self.innermost
        if phase == "backward":
            if self._stack:  # forward runs again, for what was not kept
                self._of_node[_last_node()] = self.innermost
                return self._stack[-1]
            node = torch._C._current_autograd_node()
            return "" if node is None else self._of_node.get(node._sequence_nr(), "")
        return self.innermost

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self._stack.append(self.paths.get(id(module), self.innermost))

    def _leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()


def _last_node() -> int:
    """The number of the autograd node that was made last: that of the operator that runs now."""
    return torch._C._autograd._get_sequence_nr() - 1  # pyright: ignore[reportAttributeAccessIssue]
