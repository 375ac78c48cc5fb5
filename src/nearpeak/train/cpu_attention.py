"""Attention with dropout over a packed row on CPUs.

torch's flash kernel for CPUs has no dropout, and its fallback spends more time in small operators and casts than in the
products themselves once samples are short (bf16, mean length 60: a third of the whole step). Here one autograd node
holds a layer's whole packed row: two products, a softmax and a mask a sample forward, four products backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nearpeak.errors import UnsupportedError
from nearpeak.train.cpu_dropout import keep_mask

__all__ = ["attend_with_dropout"]

Runs = Sequence[tuple[int, int]]
"""(samples, length) of neighbours that are equally long."""


def attend_with_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    runs: Runs,
    scale: float | None,
    dropout: float,
    causal: bool,
) -> torch.Tensor:
    """[heads, tokens, width] each → [tokens, heads, width]; every sample attends to itself only."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _PackedAttention.apply(query, key, value, tuple(runs), factor, dropout, causal)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query, key, value, runs: Runs, scale: float, dropout: float, causal: bool):  # type: ignore[no-untyped-def]
        output = value.new_empty(value.shape[1], value.shape[0], value.shape[2])
        kept = []
        for (start, end), *parts in _parts(runs, query, key, value):
            q, k, v = parts
            weights = _softmax(torch.bmm(q, k.transpose(1, 2)), scale, causal)
            mask = keep_mask(weights, 1 - dropout)
            _put(output, start, end, torch.bmm(weights * mask, v), len(value))
            kept += [weights, mask]
        ctx.save_for_backward(query, key, value, *kept)
        ctx.runs, ctx.scale = runs, scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient):  # type: ignore[no-untyped-def]
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "A gradient of a gradient does not pass through packed attention with dropout: use "
                "micro_batching='partition'."
            )
        query, key, value, *kept = ctx.saved_tensors
        grads = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (query, key, value))
        by_head = gradient.transpose(0, 1)
        for position, ((start, end), q, k, v, g) in enumerate(_parts(ctx.runs, query, key, value, by_head)):
            weights, mask = kept[2 * position], kept[2 * position + 1]
            dropped = weights * mask
            for_value = torch.bmm(dropped.transpose(1, 2), g)
            for_scores = torch._softmax_backward_data(
                torch.bmm(g, v.transpose(1, 2)).mul_(mask), weights, -1, weights.dtype
            )
            for_scores.mul_(ctx.scale)
            results = (torch.bmm(for_scores, k), torch.bmm(for_scores.transpose(1, 2), q), for_value)
            for whole, part in zip(grads, results, strict=True):
                whole[:, start:end] = part.view(len(whole), end - start, -1)
        return (*grads, None, None, None, None)


def _parts(runs: Runs, *tensors: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """For each run its place in the row, and every tensor's [heads × samples, length, width]."""
    start = 0
    for samples, length in runs:
        end = start + samples * length
        yield ((start, end), *(t[:, start:end].reshape(-1, length, t.shape[-1]) for t in tensors))
        start = end


def _softmax(scores: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    scores.mul_(scale)
    if causal:
        length = scores.shape[-1]
        scores.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu_(1), float("-inf"))
    # The kernel keeps its sums in fp32 whatever the type of its input.
    return torch._softmax(scores, -1, False)


def _put(output: torch.Tensor, start: int, end: int, attended: torch.Tensor, heads: int) -> None:
    output[start:end] = attended.view(heads, end - start, -1).transpose(0, 1)
