"""How a prepared window crosses from a worker to the training process.

A worker packs its window itself instead of leaving that to a queue's background thread: what cannot be packed then is
an error with a name, where the queue would lose it and wait for ever. Tensors under 128 KiB travel by value and larger
ones in shared memory: passing a file descriptor costs the receiver about 0.5 ms a tensor, so that the 48 small tensors
of a text window cost the training process 8 ms by descriptor and 0.2 ms by value; at 256 KiB the two are even.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches pickle to hand tensors over in shared memory

__all__ = ["BY_VALUE_BYTES", "pack", "unpack"]

BY_VALUE_BYTES = 128 * 1024


def pack(value: Any) -> bytes:
    """The bytes of a value; large tensors stay in shared memory and their handle travels."""
    buffer = io.BytesIO()
    _Packer(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpack(parcel: bytes) -> Any:
    """The value packed by a process that is still alive."""
    return pickle.loads(parcel)


class _Packer(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _goes_by_value(value):
            content = bytearray(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
            return _rebuild, (content, value.dtype, tuple(value.shape))
        return NotImplemented


def _goes_by_value(tensor: torch.Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    return (
        plain
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and (tensor.numel() * tensor.element_size() <= BY_VALUE_BYTES)
    )


def _rebuild(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)
