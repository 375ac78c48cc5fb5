"""Autocast on the pretend device, as CUDA does it: which operators run in which precision, and the cache of casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from nearpeak.predict.pretend.device import DEVICE

__all__ = ["casting", "register"]

LOWER = """
__matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul linalg_multi_dot linalg_vecdot conv1d conv2d conv3d conv_tbc
conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution _convolution prelu gru_cell lstm_cell matmul
linear mm mv rnn_relu_cell rnn_tanh_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell einsum scaled_dot_product_attention
"""
"""Run in the precision of autocast."""
FULL = """
acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
upsample_bilinear2d upsample_bicubic2d prod prod.dim_int softmax.int log_softmax.int cumprod cumsum
linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim
"""
"""Run in fp32."""
WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat stack
"""
"""Run in the widest precision among their arguments."""

_LIBRARIES: list[torch.library.Library] = []
_CACHE: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""id of a parameter → (the parameter, its cast); kept until the outermost autocast ends."""


class casting:
    """Whether an operator now runs to fill the cache of casts."""

    caching = False


def register() -> None:
    """Install CUDA's rules for the pretend device."""
    everything = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    _LIBRARIES.extend((everything, library))
    for names, target in ((LOWER, _lower), (FULL, _full), (WIDEST, _widest)):
        for name in names.split():
            operator = _operator(name)
            if operator is not None:
                library.impl(operator, _kernel(operator, target))
    _clear_cache_on_exit()


def _operator(name: str) -> Any:
    """None for names that this version of torch does not have."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    overload = overload or "default"
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else None


def _kernel(operator: Any, target: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            dtype = target((args, kwargs))
            cast_args, cast_kwargs = tree_map(lambda each: _cast(each, dtype), (args, kwargs))
            return operator(*cast_args, **cast_kwargs)

    return run


def _lower(_: Any) -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE)


def _full(_: Any) -> torch.dtype:
    return torch.float32


def _widest(arguments: Any) -> torch.dtype:
    found = [each.dtype for each in tree_flatten(arguments)[0] if _eligible(each)]
    return torch.float32 if torch.float32 in found or not found else found[0]


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == DEVICE
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not _eligible(value) or value.dtype == dtype:
        return value
    if not _cacheable(value, dtype):
        return value.to(dtype)
    if id(value) not in _CACHE:
        casting.caching = True
        _CACHE[id(value)] = (value, value.to(dtype))
        casting.caching = False
    return _CACHE[id(value)][1]


def _cacheable(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """CUDA keeps the casts of fp32 leaves that need a gradient: of the weights."""
    weight = value.is_leaf and value.requires_grad and value.dtype == torch.float32 and value._base is None
    return weight and dtype != torch.float32 and torch.is_autocast_cache_enabled()


def _clear_cache_on_exit() -> None:
    original = torch.amp.autocast_mode.autocast.__exit__

    def leave(self: Any, *error: Any) -> Any:
        result = original(self, *error)
        if not torch.is_autocast_enabled(DEVICE):
            _CACHE.clear()
        return result

    torch.amp.autocast_mode.autocast.__exit__ = leave  # type: ignore[method-assign]
