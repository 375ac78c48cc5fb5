"""LitGPT's fine-tuning by low-rank adapters, built from one of its own configuration files (`config_hub/finetune`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CHUNK = 128
"""Tokens of the last layer at a time, as LitGPT's `finetune_lora` has it."""


def build(*, config: str, tokens: int) -> Any:
    """(model, batch, loss, optimizer) of a configuration file, its batch as long as the settings allow."""
    from nearpeak.predict.pretend.vision import mend_torchvision

    mend_torchvision()
    import yaml
    from litgpt.utils import chunked_cross_entropy  # pyright: ignore[reportMissingImports]

    settings = yaml.safe_load(Path(config).read_text())
    samples = settings["train"]["micro_batch_size"]

    def batch() -> Any:
        return [torch.empty(samples, tokens, dtype=torch.int64, device="cuda") for _ in range(2)]

    def loss(model: Any, batch: Any) -> Any:
        logits = model(batch[0], lm_head_chunk_size=CHUNK)
        logits[-1] = logits[-1][..., :-1, :]
        return chunked_cross_entropy(logits, batch[1][..., 1:]), logits

    return _model(settings, tokens), batch, loss, _optimizer(settings)


def _model(settings: Any, tokens: int) -> torch.nn.Module:
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable  # pyright: ignore[reportMissingImports]

    adapters = {name: value for name, value in settings.items() if name.startswith("lora_")}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = GPT(Config.from_name(Path(settings["checkpoint_dir"]).name, **adapters))
    finally:
        torch.set_default_dtype(before)
    mark_only_lora_as_trainable(model)
    model.max_seq_length = tokens
    return model


def _optimizer(settings: Any) -> Callable[[torch.nn.Module], Any]:
    given = settings["optimizer"]
    kind = getattr(torch.optim, given["class_path"].rpartition(".")[2])
    return lambda model: kind(model.parameters(), **given["init_args"])
