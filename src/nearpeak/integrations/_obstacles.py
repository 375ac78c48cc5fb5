"""What makes a trainer keep its own micro-batches, known before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nearpeak.train.batches import per_token_keys, real_lengths
from nearpeak.train.equivalence import couples_samples

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["lengths_of", "model_of", "obstacle_in_trainer", "obstacle_in_window", "overridden"]

WATCHED = (
    "get_batch_samples",
    "training_step",
    "compute_loss",
    "get_train_dataloader",
    "_get_train_sampler",
    "_inner_training_loop",
    "_prepare_inputs",
)
"""Methods by which a subclass changes what a step consumes or computes."""


def model_of(trainer: Trainer) -> torch.nn.Module:
    """The trainer's own model, without what data parallelism wraps around it."""
    assert trainer.model is not None
    return trainer.model


def overridden(trainer: Trainer) -> list[str]:
    """The watched methods that a subclass of transformers' Trainer defines itself."""
    from transformers import Trainer

    # By module, not by identity: the hook of `nearpeak run` replaces methods of the class itself.
    return [name for name in WATCHED if not _is_of_library(getattr(type(trainer), name, None), Trainer)]


def _is_of_library(method: Any, trainer_class: type) -> bool:
    module = getattr(method, "__module__", "")
    return method is None or module == trainer_class.__module__ or module.startswith("nearpeak.")


def obstacle_in_trainer(trainer: Trainer) -> str | None:
    """Why this trainer's windows must not be regrouped, or None."""
    for found, because in _conditions(trainer):
        if found:
            return because
    layer = couples_samples(model_of(trainer))
    return f"{layer} couples the samples of a micro-batch" if layer else None


def _conditions(trainer: Trainer) -> list[tuple[bool, str]]:
    args, accelerator = trainer.args, trainer.accelerator
    return [
        (trainer.is_deepspeed_enabled, "DeepSpeed runs its own accumulation"),
        (trainer.is_fsdp_enabled, "FSDP shards the model; its hooks expect the script's micro-batches"),
        (args.n_gpu > 1, f"DataParallel splits batches over {args.n_gpu} GPUs; start the script with torchrun instead"),
        (_splits_samples(accelerator), "context, sequence or tensor parallelism splits samples"),
        (_is_compiled(trainer), "a compiled model would be compiled again for every new shape"),
        (_trains_in_backward(trainer), "the optimizer steps inside backward, once for each micro-batch"),
        (args.neftune_noise_alpha is not None, "NEFTune's noise depends on the padded width of a micro-batch"),
        (bool(getattr(trainer.model, "is_loaded_in_4bit", False)), "a 4-bit model cannot be copied for the check"),
    ]


def _splits_samples(accelerator: Any) -> bool:
    layout = getattr(accelerator, "parallelism_config", None)
    sizes = (getattr(layout, name, 1) or 1 for name in ("cp_size", "sp_size", "tp_size"))
    return layout is not None and any(size > 1 for size in sizes)


def _is_compiled(trainer: Trainer) -> bool:
    modules = model_of(trainer).modules()
    return bool(getattr(trainer.args, "torch_compile", False)) or any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None for module in modules
    )


def _trains_in_backward(trainer: Trainer) -> bool:
    """LOMO, and whatever else updates weights from hooks on their gradients."""
    hooked = any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model_of(trainer).parameters())
    return hooked or "lomo" in str(trainer.args.optim).lower()


def obstacle_in_window(batches: Sequence[Any]) -> str | None:
    """Why these batches cannot be cut into rows and put together again, or None."""
    if not batches:
        return "the window is empty"
    for batch in batches:
        if not isinstance(batch, Mapping):
            return f"batches are {type(batch).__name__}, not dictionaries of tensors"
        if not per_token_keys(batch) or "attention_mask" not in batch:
            return "batches have no input_ids with an attention_mask: real lengths are unknown"
    if len({frozenset(batch) for batch in batches}) > 1:
        return "the batches of one window hold different keys"
    return _obstacle_in_rows(batches)


def _obstacle_in_rows(batches: Sequence[Mapping[str, Any]]) -> str | None:
    for batch in batches:
        rows = len(batch["input_ids"])
        odd = [key for key, value in batch.items() if not _has_rows(value, rows)]
        if odd:
            return f"{odd[0]!r} has no row for each sample"
    # Ragged second dimensions other than the tokens' (a second sequence, an image) have no known padding value.
    shapes = [{k: v.shape[2:] if k in per_token_keys(b) else v.shape[1:] for k, v in _tensors(b)} for b in batches]
    differing = [key for key in shapes[0] if any(shape[key] != shapes[0][key] for shape in shapes)]
    if differing:
        return f"{differing[0]!r} has a different width in each batch"
    return None if lengths_of(batches) else "a row has no real token"


def _tensors(batch: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    return [(key, value) for key, value in batch.items() if isinstance(value, torch.Tensor)]


def _has_rows(value: Any, rows: int) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() > 0 and len(value) == rows
    return isinstance(value, list | tuple) and len(value) == rows


def lengths_of(batches: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Real length of every row of a window; None where a row has no real token."""
    lengths = [length for batch in batches for length in real_lengths(batch) or []]
    return lengths if lengths and min(lengths) > 0 else None
