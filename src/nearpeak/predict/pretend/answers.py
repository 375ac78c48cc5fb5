"""Answers for operators whose result depends on data that is not there, or which torch refuses to fake."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from nearpeak.predict.pretend.said import assume

__all__ = ["answer", "in_places"]

aten = torch.ops.aten
_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
READS = "`.item()`: a value read from the device was taken to be 1 (or true)"
SELECTS = "boolean selection: taken to select every element"
TARGETS = "CTC loss: all targets taken to be of one length"
UNIQUE = "unique: every element taken to differ"


def answer(func: Any, args: Any, kwargs: Any, real: Any) -> tuple[bool, Any]:
    """(whether it was answered here, the answer); notes what was assumed. `real` is what the operator gives where that
    is known."""
    if real is not None and not _DEPENDENT.isdisjoint(func.tags):
        return True, tree_map(lambda each: _like(each, args[0]), real)
    handler = _HANDLERS.get(func)
    if handler is None or not _without_data(args):
        return False, None
    found = handler(*args, **kwargs)
    if found is None:
        return False, None
    risk, result = found
    if risk is not None:
        assume(risk)
    return True, result


def _without_data(args: Any) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and isinstance(args[0], FakeTensor)


def _like(real: Any, operand: torch.Tensor) -> Any:
    return operand.new_empty(real.shape, dtype=real.dtype) if isinstance(real, torch.Tensor) else real


def in_places(func: Any, args: Any, tracker: Any) -> Any:
    """Arguments of an operator with places instead of masks among its indices: real devices look for them first."""
    if func is not aten.index.Tensor or not any(_is_mask(each) for each in args[1]):
        return args
    indices: list[Any] = []
    for each in args[1]:
        if not _is_mask(each):
            indices.append(each)
            continue
        found = tracker.__torch_dispatch__(aten.nonzero.default, (), (each,))
        indices += [tracker.__torch_dispatch__(aten.select.int, (), (found, 1, axis)) for axis in range(each.dim())]
    return (args[0], indices, *args[2:])


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


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


def _ctc_loss(log_probabilities: torch.Tensor, targets: torch.Tensor, *_: Any, **__: Any) -> tuple[str, Any]:
    """The loss of each sample, and the sums over paths that backward reads."""
    time, batch = log_probabilities.shape[0], log_probabilities.shape[1]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // batch)
    sums = log_probabilities.new_empty((batch, time, 2 * longest + 1))
    return TARGETS, (log_probabilities.new_empty(batch), sums)


def _ctc_loss_backward(_: torch.Tensor, log_probabilities: torch.Tensor, *__: Any, **___: Any) -> tuple[None, Any]:
    return None, torch.empty_like(log_probabilities)


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
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss_backward.default: _ctc_loss_backward,
    aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
}
