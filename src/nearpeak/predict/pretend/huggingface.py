"""Models of Hugging Face transformers: from a name, a folder or a configuration, without weights or network."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nearpeak.errors import MissingExtraError, SettingError, UnsupportedError
from nearpeak.predict.known_models import KNOWN_MODELS, TASKS
from nearpeak.predict.pretend.batches import Batch, Inputs
from nearpeak.predict.pretend.vision import mend_torchvision
from nearpeak.predict.request import CaptureRequest

__all__ = ["load", "transformers"]


def load(request: CaptureRequest, inputs: Inputs) -> tuple[torch.nn.Module, Callable[[], Any], Callable[..., Any]]:
    """(model, batch, loss)"""
    library = transformers()
    if library is None:
        raise MissingExtraError(f"{request.model}: needs transformers: pip install 'nearpeak[hf]'.")
    _see_tensors_as_real()
    config = _config(library, request)
    _complete(config)
    task = request.task or _task(library, config)
    model = _model(library, config, task, request)
    if request.recompute:
        _recompute(model)
    return model, Batch(model, config, task, request, inputs), _loss


def transformers() -> Any:
    """The library, None where it is not installed."""
    mend_torchvision()  # transformers imports it where it is installed
    try:
        return importlib.import_module("transformers")
    except ImportError:
        return None


def _see_tensors_as_real() -> None:
    """Tensors without data make transformers think it is being exported, and keep masks it would drop."""
    from transformers.utils import import_utils

    import_utils.is_fake_tensor = lambda _: False  # type: ignore[attr-defined]


def _config(library: Any, request: CaptureRequest) -> Any:
    """Made anew with what the request changes: classes derive further settings from those they are given."""
    config = _found_config(library, request.model)
    if not request.overrides:
        return config
    for name in request.overrides:
        if not hasattr(config, name):
            raise SettingError(f"{request.model}: its configuration has no {name!r}.")
    settings = {name: value for name, value in config.to_dict().items() if not _one_for_each_layer(config, name, value)}
    changed = {config.attribute_map.get(name, name): value for name, value in request.overrides.items()}
    return type(config).from_dict({**settings, **changed})


def _one_for_each_layer(config: Any, name: str, value: Any) -> bool:
    """Such as the kind of each layer, which follows from their number."""
    return name == "layer_types" and isinstance(value, list) and len(value) == getattr(config, "num_hidden_layers", 0)


def _complete(config: Any) -> None:
    """What published configurations hold, and defaults of the class may not: forward asks for it."""
    for name in ("decoder_start_token_id", "pad_token_id"):
        if getattr(config, name, None) is None:
            setattr(config, name, 0)


def _found_config(library: Any, name: str) -> Any:
    path = Path(name)
    if path.exists():
        return library.AutoConfig.from_pretrained(name)
    known = KNOWN_MODELS.get(name) or KNOWN_MODELS.get(name.rsplit("/", 1)[-1])
    if known is not None:
        kind, settings = known
        return getattr(library, kind)(**settings)
    if name in library.models.auto.configuration_auto.CONFIG_MAPPING:
        return library.AutoConfig.for_model(name)
    try:
        return library.AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        raise SettingError(
            f"{name!r}: no such folder, nothing of that name in the local Hugging Face cache, and none of the models "
            f"whose sizes nearpeak knows ({', '.join(sorted(KNOWN_MODELS)[:6])}, …). Give a folder with a config.json."
        ) from None


def _task(library: Any, config: Any) -> str:
    """By the class the configuration names, else the first task that the type of model has a head for."""
    named = (config.architectures or [""])[0]
    for task, (mark, _) in TASKS.items():
        if named.endswith(mark):
            return task
    for task, (_, auto) in TASKS.items():
        if type(config) in getattr(library, auto)._model_mapping:
            return task
    raise UnsupportedError(
        f"{type(config).__name__}: no head to train that nearpeak knows; give a function that builds model and batch."
    )


def _model(library: Any, config: Any, task: str, request: CaptureRequest) -> torch.nn.Module:
    if task not in TASKS:
        raise SettingError(f"task={task!r}: must be one of {', '.join(TASKS)}.")
    auto = getattr(library, TASKS[task][1])
    arguments = {} if request.attention is None else {"attn_implementation": request.attention}
    _skip_weight_initialisation(library)
    try:
        return auto.from_config(config, dtype=torch.float32, **arguments)
    except ValueError as error:
        raise UnsupportedError(f"{type(config).__name__}: {str(error).splitlines()[0]}") from None


def _skip_weight_initialisation(library: Any) -> None:
    base = library.modeling_utils.PreTrainedModel
    for name in ("init_weights", "initialize_weights", "_initialize_weights"):
        if hasattr(base, name):
            original = getattr(base, name)
            if getattr(original, "skips", False):
                continue
            setattr(base, name, _tying_only if name == "init_weights" else _nothing)


def _tying_only(self: Any) -> None:
    self.tie_weights(recompute_mapping=False) if _takes(self.tie_weights, "recompute_mapping") else self.tie_weights()


def _nothing(self: Any, *_: Any, **__: Any) -> None:
    return None


def _takes(function: Any, argument: str) -> bool:
    return argument in inspect.signature(function).parameters


def _recompute(model: Any) -> None:
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise UnsupportedError(f"{type(model).__name__} has no gradient checkpointing of its own.")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False


def _loss(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
    output = model(**batch)
    if getattr(output, "loss", None) is not None:
        return output.loss, output
    first = next(each for each in output.to_tuple() if torch.is_tensor(each) and each.is_floating_point())
    return first.float().mean(), output
