"""Convolutions as cuDNN runs them: results come in the format that operands suggest; kernels for tensor cores want
channels last, and work on copies where operands are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["in_cudnn_format", "is_own_kernel", "workspaces"]

aten = torch.ops.aten
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
VECTOR_BYTES = 16
FEW_CHANNELS = 4
PARTIAL_SUMS_BYTES = 4 << 20
"""What the gradient of a weight takes beside copies: sums of parts of the batch. 2 to 9 MiB were measured. It counts
for more than its size: the allocator cannot serve it from the block that the gradient of the input gave back."""
PLAIN_WIDTH, PLAIN_COPIES = 3, 3.2
"""Without tensor cores: Winograd's transformed tiles, by the same measurements with TF32 switched off."""


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


def is_own_kernel(func: Any, args: Any) -> bool:
    """Whether torch runs its own kernel: filters of one channel each, unless channels are last."""
    call = _call(func, args)
    if call is None or call.transposed or call.groups == 1 or call.tensor.dim() not in FORMATS:
        return False
    one_each = call.tensor.size(1) == call.groups and call.weight.size(0) % call.groups == 0
    return one_each and _format(call.tensor, call.weight) == torch.contiguous_format


def workspaces(func: Any, args: Any, results: list[torch.Tensor], capability: tuple[int, int]) -> list[int]:
    """Bytes that each kernel of a convolution takes while it runs: forward, or those that make the gradients of input
    and weight. Rules and figures are those of single convolutions measured on an H200 with cuDNN 9."""
    call = _call(func, args)
    if call is None or not results or is_own_kernel(func, args) or call.tensor.dim() not in FORMATS:
        return []
    other = args[0] if call.backward else results[0]
    operands = sum(each.numel() * each.element_size() for each in (call.tensor, call.weight, other))
    rule = _on_tensor_cores if _has_tensor_cores(call.tensor.dtype, capability) else _on_plain_cores
    return [rule(call, kernel, operands) for kernel in call.kernels]


def _has_tensor_cores(dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """For half precision since Volta, for fp32 (as TF32) since Ampere."""
    if dtype in (torch.float16, torch.bfloat16):
        return capability >= (7, 0)
    return dtype == torch.float32 and torch.backends.cudnn.allow_tf32 and capability >= (8, 0)


def _on_tensor_cores(call: _Call, kernel: str, operands_bytes: int) -> int:
    """Operands and results are copied with their channels last, unless they are so already."""
    if _format(call.tensor, call.weight) != torch.contiguous_format or not _needs_copies(call):
        return 0
    return operands_bytes + (PARTIAL_SUMS_BYTES if kernel == "weight" else 0)


def _needs_copies(call: _Call) -> bool:
    """Not for products of matrices whose rows are whole vectors, nor for few channels under kernels that hardly
    overlap."""
    row_bytes = call.tensor[0, 0].numel() * call.tensor.element_size()
    if call.width == 1 and max(call.stride) == 1:
        return row_bytes % VECTOR_BYTES != 0
    return call.tensor.size(1) >= FEW_CHANNELS or call.width > 2 * max(call.stride)


def _on_plain_cores(call: _Call, kernel: str, operands_bytes: int) -> int:
    tiled = call.width == PLAIN_WIDTH and max(call.stride) == 1 and call.groups == 1 and kernel == "weight"
    return round(PLAIN_COPIES * operands_bytes) if tiled else 0


@dataclass(frozen=True, slots=True)
class _Call:
    """What a convolution or its backward was called with."""

    tensor: torch.Tensor
    weight: torch.Tensor
    stride: tuple[int, ...]
    transposed: bool
    groups: int
    kernels: tuple[str, ...]

    @property
    def backward(self) -> bool:
        return self.kernels != ("forward",)

    @property
    def width(self) -> int:
        return max(self.weight.shape[2:])


def _call(func: Any, args: Any) -> _Call | None:
    if func is aten.convolution_backward.default:
        _, tensor, weight, _, stride, _, _, transposed, _, groups, made = args
        kernels = tuple(name for name, wanted in zip(("input", "weight"), made, strict=False) if wanted)
        return _Call(tensor, weight, tuple(stride), transposed, groups, kernels)
    if func is aten.convolution.default:
        tensor, weight, _, stride, _, _, transposed, _, groups = args
        return _Call(tensor, weight, tuple(stride), transposed, groups, ("forward",))
    return None
