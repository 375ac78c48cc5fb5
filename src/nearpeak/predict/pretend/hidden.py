"""Memory that CUDA's operators ask for beside their results: library workspaces and kernels' own buffers."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from nearpeak.predict.pretend.convolution import is_own_kernel, workspaces

__all__ = ["HiddenMemory", "blas_workspace_bytes"]

aten = torch.ops.aten
KIB = 1 << 10


def blas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """cuBLAS's workspace of one handle, as torch sets it (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
    return 4096 * 8 * KIB if compute_capability >= (9, 0) else (2 * 4096 + 8 * 16) * KIB


class HiddenMemory:
    """What each operator takes on one card."""

    def __init__(self, compute_capability: tuple[int, int], *, tries_algorithms: bool = False) -> None:
        """`tries_algorithms`: as `torch.backends.cudnn.benchmark` has cuDNN do."""
        self._capability = compute_capability
        self._blas_bytes = blas_workspace_bytes(compute_capability)
        self._handles: set[str] = set()
        self._tries_algorithms = tries_algorithms
        self._tried: set[Any] = set()

    def before(self, func: Any, args: Any, kwargs: Any, phase: str) -> list[int]:
        """Sizes that stay from now on: each thread's cuBLAS handle keeps a workspace; backward has its own thread."""
        if func._overloadpacket not in _PRODUCTS:
            return []
        handle = "backward" if phase == "backward" else "forward"
        if handle in self._handles or not _on_device(args):
            return []
        self._handles.add(handle)
        return [self._blas_bytes]

    def empties_cache(self, func: Any, args: Any) -> bool:
        """Whether a convolution of a shape not seen before runs with `cudnn.benchmark`: torch gives the cache back
        after it has tried the algorithms."""
        if not self._tries_algorithms or func._overloadpacket not in _CONVOLUTIONS or is_own_kernel(func, args):
            return False
        key = (func, *(tuple(each.shape) if isinstance(each, torch.Tensor) else str(each) for each in args))
        new = key not in self._tried
        self._tried.add(key)
        return new

    def during(self, func: Any, args: Any, results: list[torch.Tensor]) -> int:
        """Bytes that live only while the kernel runs, beside its results."""
        rule = _BUFFERS.get(func._overloadpacket)
        return 0 if rule is None else rule(args, results)

    def in_turn(self, func: Any, args: Any, results: list[torch.Tensor]) -> list[int]:
        """Bytes that the kernels of an operator take one after the other, each after its result was made."""
        return workspaces(func, args, results, self._capability)


_CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
_PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot}


def _on_device(args: Any) -> bool:
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    return bool(tensors) and tensors[0].device.type != "cpu"


def _flash_backward(args: Any, _: list[torch.Tensor]) -> int:
    """The query's gradient is summed in fp32, rows rounded to 128 and widths to 32; with shared keys, the gradients of
    keys and values are made for every head first."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rows = -(-length // 128) * 128
    columns = -(-width // 32) * 32
    total = 4 * batch * heads * rows * (columns + 1)
    if key.shape[1] != heads:
        total += 2 * query.element_size() * batch * heads * key.shape[2] * width
    return total


def _efficient_backward(args: Any, _: list[torch.Tensor]) -> int:
    """The sum of products of out and its gradient per row; in half precision the query's gradient in fp32."""
    query = args[1]
    rows = prod(query.shape[:-1])
    accumulate = 0 if query.dtype == torch.float32 else 4 * prod(query.shape)
    return 4 * rows + accumulate


_BUFFERS: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
}
