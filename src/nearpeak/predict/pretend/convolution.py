"""Memory formats of convolutions as cuDNN has them: results come in the format that operands suggest."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["in_cudnn_format"]

aten = torch.ops.aten
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def in_cudnn_format(func: Any, args: Any, out: Any) -> tuple[Any, int]:
    """(results with the strides that CUDA gives them, bytes of operands copied into that format while it runs)."""
    if func is aten.convolution.default:
        wanted = _format(args[0], args[1])
        return _in(out, wanted), _copied(args[:2], wanted)
    if func is aten.convolution_backward.default:
        wanted = _format(args[1], args[2])
        return tuple(_in(each, wanted) for each in out), _copied(args[:3], wanted)
    return out, 0


def _format(tensor: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last if either operand has it; never in fp64."""
    last = FORMATS.get(weight.dim())
    if last is None or torch.float64 in (tensor.dtype, weight.dtype):
        return torch.contiguous_format
    return last if _suggests(tensor, last) or _suggests(weight, last) else torch.contiguous_format


def _suggests(tensor: torch.Tensor, last: torch.memory_format) -> bool:
    """Whether strides say channels last; where both formats have the same strides, they say contiguous."""
    if tensor.dim() not in FORMATS or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=last) or _strides_like_last(tensor)


def _strides_like_last(tensor: torch.Tensor) -> bool:
    """Channels are nearest, then columns, rows, samples; dense or not."""
    order = [1, *range(tensor.dim() - 1, 1, -1), 0]
    strides = [tensor.stride(each) for each in order if tensor.size(each) > 1]
    return tensor.stride(1) == 1 and strides == sorted(strides) and len(set(strides)) == len(strides)


def _in(tensor: Any, wanted: torch.memory_format) -> Any:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() not in FORMATS:
        return tensor
    return tensor.contiguous(memory_format=wanted)


def _copied(tensors: Any, wanted: torch.memory_format) -> int:
    return sum(
        each.numel() * each.element_size()
        for each in tensors
        if each.dim() in FORMATS and not each.is_contiguous(memory_format=wanted)
    )
