"""From a request to a `Subject`: finds the source of the model and sets up its training."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from nearpeak.errors import MissingExtraError, SettingError, UnsupportedError
from nearpeak.predict.pretend.batches import Inputs
from nearpeak.predict.pretend.building import building
from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.precision import DTYPES, weights_dtype
from nearpeak.predict.pretend.said import assume
from nearpeak.predict.pretend.step import Subject
from nearpeak.predict.request import CaptureRequest

__all__ = ["load_function", "subject_of"]

Loss = Callable[[torch.nn.Module, Any], Any]


def subject_of(request: CaptureRequest, fake: FakeTensorMode, inputs: Inputs) -> Subject:
    """Build the model, without data, and say how it is trained."""
    request = replace(request, model=request.model.removeprefix(f"{request.kind}/"))
    with building(fake):
        model, batch, loss, optimizer = _SOURCES[request.kind](request, inputs)
        model = _adapted(model, request)
    dtype = DTYPES.get(request.precision.partition("-")[0])
    weights = weights_dtype(request)
    return Subject(
        model=model,
        batch=batch,
        loss=loss,
        optimizer=optimizer or _optimizer(request),
        autocast=dtype if weights is None else None,
        weights=weights,
        micro_batches=request.micro_batches,
        clip_norm=request.clip_norm,
        channels_last=request.channels_last,
    )


def load_function(name: str) -> Any:
    """`module:function`, the module looked for where the command runs, too."""
    module, _, function = name.partition(":")
    if not function:
        raise SettingError(f"{name!r}: must be module:function, such as train:build.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise SettingError(f"{name}: {error}.") from None
    except AttributeError:
        raise SettingError(f"{name}: {module} has no {function}.") from None


# -- sources -----------------------------------------------------------------------------------------------------------


def _huggingface(request: CaptureRequest, inputs: Inputs) -> Any:
    from nearpeak.predict.pretend import huggingface

    return (*huggingface.load(request, inputs), None)


def _timm(request: CaptureRequest, _: Inputs) -> Any:
    from nearpeak.predict.pretend.vision import stand_in_for_torchvision

    stand_in_for_torchvision()
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtraError(f"{request.model}: needs timm: pip install timm.") from None
    if request.model not in timm.list_models():
        raise SettingError(f"{request.model!r} is no model of timm {timm.__version__}: see timm.list_models().")
    model = timm.create_model(request.model, pretrained=False, **request.overrides)
    if request.recompute:
        model.set_grad_checkpointing(True)
    channels, height, width = model.default_cfg.get("input_size", (3, 224, 224))
    side = (request.image or height, request.image or width)
    return model, _images(request, (channels, *side)), _cross_entropy_if_any, None


def _torchvision(request: CaptureRequest, _: Inputs) -> Any:
    from nearpeak.predict.pretend.vision import mend_torchvision

    mend_torchvision()
    try:
        from torchvision import models  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtraError(f"{request.model}: needs torchvision: pip install torchvision.") from None
    try:
        model = models.get_model(request.model, weights=None, **request.overrides)
    except ValueError as error:
        raise SettingError(f"{request.model}: {error}.") from None
    side = request.image or (299 if request.model == "inception_v3" else 224)
    return model, _images(request, (3, side, side)), _cross_entropy, None


def _function(request: CaptureRequest, _: Inputs) -> Any:
    """The function returns model, batch, and, if the defaults do not fit, loss and optimizer."""
    made = load_function(request.model)(**request.overrides)
    parts = list(made.values()) if isinstance(made, dict) else list(made)
    if not 2 <= len(parts) <= 4 or not isinstance(parts[0], torch.nn.Module):
        raise SettingError(
            f"{request.model}: must return (model, batch), (model, batch, loss) or (model, batch, loss, optimizer)."
        )
    model, batch, loss, optimizer = (*parts, *[None] * (4 - len(parts)))
    return model, batch if callable(batch) else _copied(batch), loss or _default_loss, optimizer


_SOURCES: dict[str, Callable[[CaptureRequest, Inputs], Any]] = {
    "huggingface": _huggingface,
    "timm": _timm,
    "torchvision": _torchvision,
    "function": _function,
}


# -- batches and losses ------------------------------------------------------------------------------------------------


def _images(request: CaptureRequest, shape: tuple[int, int, int]) -> Callable[[], Any]:
    """In the precision of the weights, if that is not fp32; else as autocast takes them."""

    def make() -> Any:
        return (
            torch.empty(request.batch, *shape, dtype=weights_dtype(request), device=DEVICE),
            torch.zeros(request.batch, dtype=torch.int64, device=DEVICE),
        )

    return make


def _copied(batch: Any) -> Callable[[], Any]:
    """A batch given as tensors goes to the device as `.to` would take it."""
    from torch.utils._pytree import tree_map

    def make() -> Any:
        return tree_map(lambda each: torch.empty_like(each, device=DEVICE) if torch.is_tensor(each) else each, batch)

    return make


def _cross_entropy_if_any(model: torch.nn.Module, batch: Any) -> Any:
    """Encoders without a classifier have no loss of their own."""
    output = model(batch[0])
    first = next(each for each in tree_leaves(output) if isinstance(each, torch.Tensor))
    if first.dim() == 2:
        return torch.nn.functional.cross_entropy(first, batch[1]), output
    assume(f"{type(model).__name__} is no classifier: the mean of its output was taken for the loss")
    return first.float().mean(), output


def _cross_entropy(model: torch.nn.Module, batch: Any) -> Any:
    output = model(batch[0])
    main = output[0] if isinstance(output, tuple | list) else getattr(output, "logits", output)
    if main.dim() != 2:
        raise UnsupportedError(f"{type(model).__name__} is no classifier: its output has shape {tuple(main.shape)}.")
    return torch.nn.functional.cross_entropy(main, batch[1]), output


def _default_loss(model: torch.nn.Module, batch: Any) -> Any:
    """`model(**batch).loss` for dictionaries; cross-entropy for (inputs, class)."""
    if isinstance(batch, dict):
        output = model(**batch)
        return output["loss"] if isinstance(output, dict) else output.loss, output
    return _cross_entropy(model, batch)


# -- training ----------------------------------------------------------------------------------------------------------


def _adapted(model: torch.nn.Module, request: CaptureRequest) -> torch.nn.Module:
    if request.lora is not None:
        model = _with_lora(model, request)
    if request.prepare is not None:
        load_function(request.prepare)(model, **request.prepare_arguments)
    return model


def _with_lora(model: torch.nn.Module, request: CaptureRequest) -> torch.nn.Module:
    try:
        from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtraError("LoRA needs peft: pip install peft.") from None
    assert request.lora is not None
    targets = None if request.lora.targets is None else list(request.lora.targets)
    config = LoraConfig(r=request.lora.rank, lora_dropout=request.lora.dropout, target_modules=targets)
    if request.recompute and hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()  # type: ignore[operator]
    return get_peft_model(model, config)  # type: ignore[arg-type,return-value]


def _optimizer(request: CaptureRequest) -> Callable[[torch.nn.Module], Any]:
    classes = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "sgd-momentum": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "adamax": torch.optim.Adamax,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "adafactor": torch.optim.Adafactor,
    }
    arguments: dict[str, Any] = {"lr": 1e-3}
    if request.implementation == "fused":
        arguments["fused"] = True
    else:
        arguments["foreach"] = request.implementation == "foreach"
    if request.optimizer == "sgd-momentum":
        arguments["momentum"] = 0.9
    kind = classes[request.optimizer]
    return lambda model: kind([each for each in model.parameters() if each.requires_grad], **arguments)
