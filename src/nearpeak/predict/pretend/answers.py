"""Answers for operators whose result depends on data that is not there, or which torch refuses to fake."""

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
    found = handler(*args, **kwargs)
    if found is None:
        return False, None
    risk, result = found
    if risk is not None:
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


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[None, torch.Tensor] | None:
    """Products of experts. CUDA takes fp32 and fp16 too (one product a group, into one result); torch's fake refuses
    all but bf16, which is left to it. Rows of the result are padded to 16 bytes."""
    if left.dtype != right.dtype or left.dtype not in (torch.float32, torch.float16):
        return None
    if left.dim() != 2 or right.dim() != 2:
        torch._check(left.size(-1) == right.size(-2), lambda: "contraction dimension of mat_a and mat_b must match")
    sizes = [left.size(-2), right.size(-1)]
    if left.dim() == right.dim():
        groups = left.size(0) if left.dim() == 3 or offs is None else offs.size(0)
        sizes = [groups, *sizes]
    dtype = out_dtype or left.dtype
    width = sizes[-1] + -sizes[-1] % (16 // dtype.itemsize)
    return None, left.new_empty([*sizes[:-1], width], dtype=dtype)[..., : sizes[-1]]


_HANDLERS: dict[Any, Any] = {
    aten._grouped_mm.default: _grouped_product,
    aten._local_scalar_dense.default: _scalar,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.equal.default: _equal,
}
