"""Applies activation recomputation to a model's stack of like layers, with the same random numbers both times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from nearpeak.errors import UnsupportedError
from nearpeak.plan import BlockRecompute
from nearpeak.reason import Reason
from nearpeak.train.chosen import apply_chosen
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


def apply_recompute(
    model: torch.nn.Module, policy: str, every: int = 2, blocks: Sequence[BlockRecompute | Mapping[str, Any]] = ()
) -> tuple[Callable[[], None], Reason]:
    """Recompute as the policy says; `blocks` belong to `chosen`. Returns what takes it off again, and the reason."""
    if policy == "none":
        return lambda: None, Reason("recompute=none", "Every activation is kept.")
    if policy == "chosen":
        count = sum(len(each["modules"] if isinstance(each, Mapping) else each.modules) for each in blocks)
        reason = f"Of {count} blocks, operators are computed again in backward one by one, as the plan says."
        return apply_chosen(model, blocks).remove, Reason("recompute=chosen", reason, {"blocks": count})
    found = find_blocks(model)
    if found is None:
        raise UnsupportedError(
            f"recompute={policy!r}: {type(model).__name__} has no ModuleList of blocks to recompute; "
            "use recompute='none'."
        )
    name, stack = found
    chosen = list(stack)[:: every if policy == "every_nth" else 1]
    originals = [(block, block.__dict__.get("forward")) for block in chosen]
    for block in chosen:
        block.forward = functools.partial(_recomputed, block.forward, policy == "selective")
    reason = f"{len(chosen)} of {len(stack)} blocks of {name} are computed again in backward ({policy})."
    return functools.partial(_restore, originals), Reason(f"recompute={policy}", reason, {"blocks": len(chosen)})


def _recomputed(forward: Callable[..., Any], selective: bool, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if not selective:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = operator in _KEPT and not _drops(operator, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operator: Any, args: Any, kwargs: Any) -> bool:
    """Whether attention drops out: then it draws random numbers, and if its second run were skipped, dropout after it
    would draw others than the first time."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            return bool(args[position] if position < len(args) else kwargs.get("dropout_p", argument.default_value))
    return False


_KEPT = _kept_operators()


def _restore(originals: list[tuple[torch.nn.Module, Any]]) -> None:
    for block, forward in originals:
        if forward is None:
            del block.__dict__["forward"]
        else:
            block.__dict__["forward"] = forward
