"""torchvision where its compiled part is missing or does not fit torch: models need none of it."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
import types
from typing import Any

import torch

__all__ = ["mend_torchvision", "stand_in_for_torchvision"]

_LIBRARIES: list[torch.library.Library] = []
MISSING_OPERATOR = re.compile(r"operator torchvision::(\w+) does not exist")
MOST_OPERATORS = 20


def mend_torchvision() -> bool:
    """Import torchvision if it is installed, defining operators that its compiled part would; says whether it is."""
    if importlib.util.find_spec("torchvision") is None:
        return False
    for _ in range(MOST_OPERATORS):
        try:
            importlib.import_module("torchvision")
            return True
        except RuntimeError as error:
            missing = MISSING_OPERATOR.search(str(error))
            if missing is None:
                raise
            _define(missing.group(1))
    return False


def _define(operator: str) -> None:
    """With nms's signature: nothing calls it, it must only be there."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


def stand_in_for_torchvision() -> None:
    """timm imports torchvision's transforms at its start; where torchvision is not installed, a stand-in will do."""
    if not mend_torchvision():
        sys.meta_path.append(_Finder())


class _Finder:
    """Finds every module below torchvision."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


class _Anything(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
