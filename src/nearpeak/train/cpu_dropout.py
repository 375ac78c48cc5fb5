"""Dropout on CPUs from 16 random bits an element, in place of one double each: about a quarter of the time.

The rate stays exact: the one value in 65,536 that a 16-bit threshold cannot decide is decided by a further draw.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

__all__ = ["BitDropout", "keep_mask"]


def keep_mask(like: torch.Tensor, keep: float) -> torch.Tensor:
    """1/keep with probability `keep`, else 0, in the shape and type of `like`."""
    count = like.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    threshold = keep * 65536 - 32768
    whole = math.floor(threshold)
    mask = bits < whole
    undecided = (bits == whole).nonzero().squeeze(1)
    mask[undecided] = torch.rand(len(undecided)) < threshold - whole
    return mask.view(like.shape).to(like.dtype).mul_(1 / keep)


class _BitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, rate: float) -> torch.Tensor:
        mask = keep_mask(values, 1 - rate)
        ctx.save_for_backward(mask)
        return values * mask

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (mask,) = ctx.saved_tensors
        return grad_outputs[0] * mask, None


class BitDropout(torch.nn.Dropout):
    """`torch.nn.Dropout` with the cheaper mask; instances change class in place."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Dropout; anything but training on a CPU goes torch's way."""
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu" or self.inplace:
            return functional.dropout(input, self.p, self.training, self.inplace)
        return _BitDropout.apply(input, self.p)
