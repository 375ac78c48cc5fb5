"""Models of Hugging Face transformers: from a name, a folder or a configuration, without weights or network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nearpeak.errors import MissingExtraError, SettingError, UnsupportedError
from nearpeak.predict.known_models import KNOWN_MODELS, TASKS
from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.vision import mend_torchvision
from nearpeak.predict.request import CaptureRequest

__all__ = ["load"]

LONGEST_DEFAULT_TOKENS = 512


def load(request: CaptureRequest) -> tuple[torch.nn.Module, Callable[[], Any], Callable[..., Any]]:
    """(model, batch, loss)"""
    mend_torchvision()  # transformers imports it where it is installed
    try:
        import transformers
    except ImportError:
        raise MissingExtraError(f"{request.model}: needs transformers: pip install 'nearpeak[hf]'.") from None
    _see_tensors_as_real()
    config = _config(transformers, request)
    _complete(config)
    task = request.task or _task(transformers, config)
    model = _model(transformers, config, task, request)
    if request.recompute:
        _recompute(model)
    return model, _Batch(model, config, task, request), _loss


def _see_tensors_as_real() -> None:
    """Tensors without data make transformers think it is being exported, and keep masks it would drop."""
    from transformers.utils import import_utils

    import_utils.is_fake_tensor = lambda _: False  # type: ignore[attr-defined]


def _config(transformers: Any, request: CaptureRequest) -> Any:
    """Made anew with what the request changes: classes derive further settings from those they are given."""
    config = _found_config(transformers, request.model)
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


def _found_config(transformers: Any, name: str) -> Any:
    path = Path(name)
    if path.exists():
        return transformers.AutoConfig.from_pretrained(name)
    known = KNOWN_MODELS.get(name) or KNOWN_MODELS.get(name.rsplit("/", 1)[-1])
    if known is not None:
        kind, settings = known
        return getattr(transformers, kind)(**settings)
    if name in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        return transformers.AutoConfig.for_model(name)
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        raise SettingError(
            f"{name!r}: no such folder, nothing of that name in the local Hugging Face cache, and none of the models "
            f"whose sizes nearpeak knows ({', '.join(sorted(KNOWN_MODELS)[:6])}, …). Give a folder with a config.json."
        ) from None


def _task(transformers: Any, config: Any) -> str:
    """By the class the configuration names, else the first task that the type of model has a head for."""
    named = (config.architectures or [""])[0]
    for task, (mark, _) in TASKS.items():
        if named.endswith(mark):
            return task
    for task, (_, auto) in TASKS.items():
        if type(config) in getattr(transformers, auto)._model_mapping:
            return task
    raise UnsupportedError(
        f"{type(config).__name__}: no head to train that nearpeak knows; give a function that builds model and batch."
    )


def _model(transformers: Any, config: Any, task: str, request: CaptureRequest) -> torch.nn.Module:
    if task not in TASKS:
        raise SettingError(f"task={task!r}: must be one of {', '.join(TASKS)}.")
    auto = getattr(transformers, TASKS[task][1])
    arguments = {} if request.attention is None else {"attn_implementation": request.attention}
    _skip_weight_initialisation(transformers)
    try:
        return auto.from_config(config, dtype=torch.float32, **arguments)
    except ValueError as error:
        raise UnsupportedError(f"{type(config).__name__}: {str(error).splitlines()[0]}") from None


def _skip_weight_initialisation(transformers: Any) -> None:
    base = transformers.modeling_utils.PreTrainedModel
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


# -- batches -----------------------------------------------------------------------------------------------------------


class _Batch:
    """Makes the inputs that a model's forward asks for."""

    def __init__(self, model: Any, config: Any, task: str, request: CaptureRequest) -> None:
        self._config, self._task, self._request = config, task, request
        self._names = set(inspect.signature(model.forward).parameters)
        self._main = getattr(model, "main_input_name", "input_ids")
        self._text = config.get_text_config() if hasattr(config, "get_text_config") else config

    def __call__(self) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        if self._main in _SIGNALS or self._main == "pixel_values":
            batch |= self._signal(self._main)
            if "input_ids" in self._names and self._main == "pixel_values":
                batch |= self._tokens()
        else:
            batch |= self._tokens()
            if "pixel_values" in self._names and self._task == "contrastive":
                batch |= self._signal("pixel_values")
        return batch | self._targets()

    def _tokens(self) -> dict[str, Any]:
        ids = self._integers(self._request.batch, self._length())
        return {"input_ids": ids, "attention_mask": torch.empty_like(ids)}

    def _length(self) -> int:
        if self._request.sequence is not None:
            return self._request.sequence
        longest = getattr(self._text, "max_position_embeddings", None) or LONGEST_DEFAULT_TOKENS
        return min(int(longest), LONGEST_DEFAULT_TOKENS)

    def _signal(self, name: str) -> dict[str, Any]:
        size = self._request.batch
        if name == "pixel_values":
            vision = getattr(self._config, "vision_config", self._config)
            side = self._request.image or _side(vision)
            return {name: torch.empty(size, getattr(vision, "num_channels", 3), side, side, device=DEVICE)}
        if name == "input_features":
            frames = 2 * getattr(self._config, "max_source_positions", 1500)
            bins = getattr(self._config, "num_mel_bins", 80)
            return {name: torch.empty(size, bins, frames, device=DEVICE)}
        return {name: torch.empty(size, self._request.sequence or 16_000, device=DEVICE)}

    def _targets(self) -> dict[str, Any]:
        size = self._request.batch
        if self._task == "contrastive":
            return {"return_loss": True}
        if self._task in ("causal-lm", "masked-lm", "seq2seq-lm", "token-classification", "image-text-to-text"):
            return {"labels": self._integers(size, self._length())}
        if self._task == "speech-seq2seq":
            return {"labels": self._integers(size, self._request.sequence or 128)}
        if self._task == "ctc":
            return {"labels": self._integers(size, 32)}
        if self._task == "question-answering":
            return {"start_positions": self._integers(size), "end_positions": self._integers(size)}
        if self._task == "semantic-segmentation":
            side = self._request.image or _side(self._config)
            return {"labels": self._integers(size, side, side)}
        return {"labels": self._integers(size)} if "labels" in self._names else {}

    def _integers(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=DEVICE)


_SIGNALS = ("input_features", "input_values")


def _side(config: Any) -> int:
    size = getattr(config, "image_size", None) or 224
    return int(size[0] if isinstance(size, list | tuple) else size)
