"""Floating point operations of an operator, from shapes alone: a multiplication with its addition counts as two."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

__all__ = ["operator_flops"]

aten = torch.ops.aten


def operator_flops(func: Any, args: Any, kwargs: Any, results: list[torch.Tensor]) -> int:
    """0 for operators that multiply no matrices: they cost bytes, not arithmetic."""
    rule = _RULES.get(func._overloadpacket)
    return 0 if rule is None else int(rule(args, results))


def _matmul(a: torch.Tensor, b: torch.Tensor) -> int:
    return 2 * prod(a.shape) * b.shape[-1]


def _mm(args: Any, _: Any) -> int:
    return _matmul(args[0], args[1])


def _addmm(args: Any, _: Any) -> int:
    return _matmul(args[1], args[2])


def _grouped_product(args: Any, _: Any) -> int:
    """Groups share the rows, the columns or the sum among them; only where both have a dimension for them, they add."""
    left, right = args[0], args[1]
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return 2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1]


def _convolution(args: Any, results: list[torch.Tensor]) -> int:
    weight, transposed = args[1], args[6]
    positions = args[0] if transposed else results[0]
    return 2 * positions.shape[0] * prod(positions.shape[2:]) * prod(weight.shape)


def _convolution_backward(args: Any, _: Any) -> int:
    """As much as forward for each of the two gradients. Groups divide both alike: the weight's shape holds them."""
    out_gradient, tensor, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    positions = tensor if transposed else out_gradient
    once = 2 * positions.shape[0] * prod(positions.shape[2:]) * prod(weight.shape)
    return once * (bool(mask[0]) + bool(mask[1]))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Scores and their product with the values."""
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (query.shape[-1] + value.shape[-1])


def _attention_forward(args: Any, _: Any) -> int:
    return _attention(args[0], args[1], args[2])


def _attention_backward(args: Any, _: Any) -> int:
    """Five products where forward has two: the scores are computed again."""
    return _attention(args[1], args[2], args[3]) * 5 // 2


_RULES: dict[Any, Callable[[Any, list[torch.Tensor]], int]] = {
    aten.mm: _mm,
    aten.bmm: _mm,
    aten.addmm: _addmm,
    aten.baddbmm: _addmm,
    aten._scaled_mm: _mm,
    aten._grouped_mm: _grouped_product,
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention: _attention_forward,
    aten._scaled_dot_product_efficient_attention: _attention_forward,
    aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
}
