"""Answers for operators whose result depends on data that is not there."""

from __future__ import annotations

from typing import Any

import torch

from nearpeak.predict.pretend.device import DEVICE

__all__ = ["answer"]

aten = torch.ops.aten
READS = "`.item()`: a value read from the device was taken to be 1 (or true)"
SELECTS = "boolean selection: taken to select every element"
UNIQUE = "unique: every element taken to differ"


def answer(func: Any, args: Any, kwargs: Any, risks: dict[str, None]) -> tuple[bool, Any]:
    """(whether it was answered here, the answer); notes what was assumed."""
    handler = _HANDLERS.get(func)
    if handler is None or not _on_device(args):
        return False, None
    risk, result = handler(*args, **kwargs)
    risks[risk] = None
    return True, result


def _on_device(args: Any) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].device.type == DEVICE


def _scalar(tensor: torch.Tensor) -> tuple[str, Any]:
    if tensor.dtype == torch.bool:
        return READS, True
    return READS, 1.0 if tensor.is_floating_point() else 1


def _nonzero(tensor: torch.Tensor) -> tuple[str, Any]:
    return SELECTS, tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> tuple[str, Any]:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return SELECTS, tensor.new_empty(shape.numel())


def _unique(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[str, Any]:
    flat = tensor.new_empty(tensor.numel())
    return UNIQUE, (flat, tensor.new_empty(tensor.shape, dtype=torch.int64), flat.new_empty(0, dtype=torch.int64))


def _equal(*_: Any) -> tuple[str, Any]:
    return READS, True


_HANDLERS: dict[Any, Any] = {
    aten._local_scalar_dense.default: _scalar,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.equal.default: _equal,
}
