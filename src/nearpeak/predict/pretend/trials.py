"""What cuDNN's algorithms would take of memory when `cudnn.benchmark` has them all tried, in fp32 with TF32.

Formulae of Fourier transforms over the padded image or over tiles of 32, and of Winograd's tiles, held against single
convolutions measured on an H200: within 10 % forward, 25 % backward. In half precision trying takes little.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["tried_bytes"]

aten = torch.ops.aten
SMALLEST_TRANSFORM, LARGEST_TRANSFORM = 16, 256
TILE = 32
COMPLEX_BYTES = 8
WINOGRAD_COPIES = 3.2


def tried_bytes(func: Any, args: Any) -> int:
    """Of the largest algorithm that is tried for a convolution or its backward."""
    backward = func is aten.convolution_backward.default
    tensor, weight = (args[1], args[2]) if backward else (args[0], args[1])
    stride, padding = (args[4], args[5]) if backward else (args[3], args[4])
    groups, transposed = (args[9], args[7]) if backward else (args[8], args[6])
    if tensor.dim() != 4 or groups > 1 or transposed or tensor.dtype != torch.float32:
        return 0
    sizes = (tensor.size(0), tensor.size(1), weight.size(0), max(weight.shape[2:]))
    if max(stride) > 1:
        return _strided(*sizes) if backward else 0
    image = max(tensor.shape[2:]) + 2 * max(padding)
    whole = _whole(*sizes, image=image, backward=backward)
    if not backward:
        return whole
    tiled = _tiled(*sizes, image=max(tensor.shape[2:]))
    moved = tensor.element_size() * (tensor.numel() + args[0].numel())
    winograd = round(WINOGRAD_COPIES * moved) if sizes[3] in (3, 5) else 0
    return max(whole, tiled, winograd)


def _spectrum_bytes(side: int) -> int:
    """Of one real image's transform."""
    return COMPLEX_BYTES * side * (side // 2 + 1)


def _whole(samples: int, channels: int, made: int, width: int, *, image: int, backward: bool) -> int:
    side = max(SMALLEST_TRANSFORM, 1 << (image - 1).bit_length())
    if side > LARGEST_TRANSFORM:
        return 0
    images = samples * (channels + made) if backward else 2 * samples * channels
    return _spectrum_bytes(side) * (2 * made * channels + images)


def _tiled(samples: int, channels: int, made: int, width: int, *, image: int) -> int:
    """Tried where the image is no larger than a tile."""
    if width == 1 or image > TILE - width:
        return 0
    return _spectrum_bytes(TILE) * (made * channels + samples * (channels + made))


def _strided(samples: int, channels: int, made: int, width: int) -> int:
    """Every second row and column apart: four convolutions."""
    return 0 if width == 1 or channels * made < TILE * TILE else 4 * _spectrum_bytes(TILE) * channels * (made + samples)
