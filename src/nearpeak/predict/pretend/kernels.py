"""Operators of which CUDA runs its own fused kernels: attention, dropout, recurrent layers.

What an operator is taken apart into decides what is kept for backward; here the pretend device chooses as CUDA does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Card", "register", "use"]

aten = torch.ops.aten
_LIBRARIES: list[torch.library.Library] = []
LARGEST_FLASH_HEAD = 256


@dataclass(frozen=True, slots=True)
class Card:
    """What of a GPU decides which kernels run."""

    compute_capability: tuple[int, int] = (8, 0)

    @property
    def has_flash(self) -> bool:
        return self.compute_capability >= (8, 0)

    @property
    def has_efficient(self) -> bool:
        return self.compute_capability >= (5, 0)


class _Used:
    """The card that the present step is captured for."""

    card = Card()


def use(card: Card) -> None:
    """Choose kernels as this card would."""
    _Used.card = card


def register() -> None:
    """Install them, once in a process."""
    library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    _LIBRARIES.append(library)
    library.impl("scaled_dot_product_attention", _attention)
    library.impl("dropout", _dropout)
    library.impl("feature_dropout", _feature_dropout)


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0:
        return tensor
    return aten.native_dropout(tensor, p, train)[0]


def _feature_dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Drops whole channels: the mask is one value a channel."""
    if not train or p == 0:
        return tensor
    noise = tensor.new_empty(tensor.shape[:2] + (1,) * (tensor.dim() - 2)).bernoulli_(1 - p)
    return tensor * noise.div_(1 - p)


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    card = _Used.card
    options = (dropout_p, is_causal, scale)
    if _flash_serves(card, query, key, value, attn_mask):
        return _flash(query, key, value, *options)
    if enable_gqa and key.size(-3) != query.size(-3):
        key, value = (each.repeat_interleave(query.size(-3) // each.size(-3), -3) for each in (key, value))
    if _efficient_serves(card, query, key, value):
        return _efficient(query, key, value, attn_mask, *options)
    return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]


def _flash_serves(
    card: Card, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    half = query.dtype in (torch.float16, torch.bfloat16)
    one_width = query.size(-1) == key.size(-1) == value.size(-1)
    enabled = torch.backends.cuda.flash_sdp_enabled()
    fits = query.dim() == 4 and one_width and query.size(-1) <= LARGEST_FLASH_HEAD
    return bool(enabled and card.has_flash and half and fits and mask is None)


def _efficient_serves(card: Card, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Widths must be whole vectors of 16 bytes (8 in fp32 without tensor cores); else the plain formula is used."""
    step = 4 if query.dtype == torch.float32 else 8
    aligned = query.size(-1) % step == 0 and value.size(-1) % step == 0
    enabled = torch.backends.cuda.mem_efficient_sdp_enabled()
    low_enough = query.dtype in (torch.float16, torch.float32) or (
        query.dtype == torch.bfloat16 and card.compute_capability >= (8, 0)
    )
    return bool(enabled and card.has_efficient and aligned and low_enough and query.dim() == 4)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, causal: bool, scale: float | None
) -> torch.Tensor:
    width = query.size(-1)
    scale = width**-0.5 if scale is None else scale
    query, key, value = (_padded(each, 8) for each in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, causal, False, scale=scale)[0]
    return out if out.size(-1) == width else out[..., :width]


def _padded(tensor: torch.Tensor, step: int) -> torch.Tensor:
    missing = -tensor.size(-1) % step
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """A mask becomes an additive one in the operands' precision, its rows padded to 16 bytes."""
    if mask is not None:
        mask = _bias(mask, query, key)
    needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, needs_grad, dropout_p, causal, scale=scale
    )[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        bias = torch.zeros_like(mask, dtype=query.dtype)
        mask = bias.masked_fill_(mask.logical_not(), float("-inf"))
    length = key.size(-2)
    alignment = 16
    if mask.size(-1) % alignment and mask.size(-1) > 1:
        mask = torch.nn.functional.pad(mask, (0, -mask.size(-1) % alignment))[..., : mask.size(-1)]
    return mask.expand(query.size(0), query.size(1), query.size(2), length)
