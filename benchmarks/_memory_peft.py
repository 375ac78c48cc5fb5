"""The training step behind PEFT's own comparison of methods, built from one of its result files.

PEFT's checkout holds them (`method_comparison/MetaMathQA/results/*.json`): each states the model, the adapter and how
it was trained. What none states is the longest batch of the data, in tokens: it is the same in all runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def build(*, result: str, tokens: int) -> Any:
    """(model, batch, loss, optimizer) of a result file, its batch padded to so many tokens."""
    told = json.loads(Path(result).read_text())["run_info"]
    settings = told["train_config"]
    model = _model(settings["model_id"].partition("/")[2])
    if told["peft_config"] is not None:
        model = _adapted(model, told["peft_config"], settings["autocast_adapter_dtype"])

    def batch() -> dict[str, Any]:
        shape = (settings["batch_size"], tokens)
        names = ("input_ids", "attention_mask", "labels")
        return {name: torch.empty(shape, dtype=torch.int64, device="cuda") for name in names}

    def loss(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        output = model(**batch, num_items_in_batch=settings["batch_size"] * tokens)
        return output.loss, output

    return model, batch, loss, lambda model: _optimizer(model, settings)


def _model(name: str) -> torch.nn.Module:
    from nearpeak.predict.known_models import KNOWN_MODELS
    from nearpeak.predict.pretend.vision import mend_torchvision

    mend_torchvision()
    import transformers
    from transformers import AutoModelForCausalLM

    kind, values = KNOWN_MODELS[name]
    return AutoModelForCausalLM.from_config(getattr(transformers, kind)(**values), dtype=torch.bfloat16)


def _adapted(model: torch.nn.Module, values: dict[str, Any], autocast: bool) -> torch.nn.Module:
    import inspect

    from peft import get_peft_model  # pyright: ignore[reportMissingImports]
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING  # pyright: ignore[reportMissingImports]

    kind = PEFT_TYPE_TO_CONFIG_MAPPING[values["peft_type"]]
    known = inspect.signature(kind).parameters
    given = {name: value for name, value in values.items() if name in known and name != "inference_mode"}
    return get_peft_model(model, kind(**given), autocast_adapter_dtype=autocast)  # type: ignore[arg-type]


def _optimizer(model: torch.nn.Module, settings: dict[str, Any]) -> Any:
    """Which parameters it gets are those that PEFT gives: all, the frozen ones have no gradients."""
    values = settings["optimizer_kwargs"]
    if settings["optimizer_type"] == "lora-fa":
        from peft.optimizers import create_lorafa_optimizer  # pyright: ignore[reportMissingImports]

        return create_lorafa_optimizer(model, **values)  # type: ignore[arg-type]
    return getattr(torch.optim, settings["optimizer_type"])(model.parameters(), **values)
