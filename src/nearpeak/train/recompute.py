"""Applies activation recomputation to a model's stack of like layers, with the same random numbers both times."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from nearpeak.errors import UnsupportedError
from nearpeak.reason import Reason
from nearpeak.train.packed import find_blocks

__all__ = ["apply_recompute"]


def _kept_operators() -> set[Any]:
    """Results dear to compute and cheap to keep: matrix products and attention. All else is recomputed."""
    aten = torch.ops.aten
    names = (
        "mm bmm addmm baddbmm convolution _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_cudnn_attention _flash_attention_forward"
    )
    return {getattr(aten, name).default for name in names.split() if hasattr(aten, name)}


def apply_recompute(model: torch.nn.Module, policy: str, every: int = 2) -> tuple[Callable[[], None], Reason]:
    """Recompute blocks as the policy says. Returns what takes it off again, and the reason."""
    if policy == "none":
        return lambda: None, Reason("recompute=none", "Every activation is kept.")
    found = find_blocks(model)
    if found is None:
        raise UnsupportedError(
            f"recompute={policy!r}: {type(model).__name__} has no ModuleList of blocks to recompute; "
            "use recompute='none'."
        )
    name, blocks = found
    chosen = list(blocks)[:: every if policy == "every_nth" else 1]
    originals = [(block, block.__dict__.get("forward")) for block in chosen]
    for block in chosen:
        block.forward = functools.partial(_recomputed, block.forward, policy == "selective")
    reason = f"{len(chosen)} of {len(blocks)} blocks of {name} are computed again in backward ({policy})."
    return functools.partial(_restore, originals), Reason(f"recompute={policy}", reason, {"blocks": len(chosen)})


def _recomputed(forward: Callable[..., Any], selective: bool, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if not selective:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


_KEPT = _kept_operators()


def _restore(originals: list[tuple[torch.nn.Module, Any]]) -> None:
    for block, forward in originals:
        if forward is None:
            del block.__dict__["forward"]
        else:
            block.__dict__["forward"] = forward
