"""Batches for models of Hugging Face transformers: what their forward asks for, by the names of its arguments.

Token ids, masks and labels have values, since models read them; images and sounds have none. Models differ in the
layout of images and sounds: each that a model may mean is tried. How many places an image takes in the text, the model
says.
"""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.precision import weights_dtype
from nearpeak.predict.pretend.said import assume
from nearpeak.predict.request import CaptureRequest

__all__ = ["Batch", "Inputs"]

LONGEST_DEFAULT_TOKENS = 512
FRAMES = 400
"""Of a sound, where the model names no number."""
PLAIN_TOKEN = 11
MISCOUNTED = re.compile(r"tokens.*?features\D{0,3}(\d+)")
MOST_PLACEHOLDERS = 1 << 15
TEXT_ALONE = "the model takes images or sounds beside text, in a way that is not known here: it was given text alone"
LABELLED = ("causal-lm", "masked-lm", "seq2seq-lm", "token-classification", "image-text-to-text")


@dataclass(slots=True)
class Inputs:
    """What is known of a model's inputs; failed attempts add to it."""

    layout: int = 0
    """Which of the model's possible layouts is tried."""
    layouts: int = 1
    placeholders: int = 0
    """Places in the text of a sample that stand for images or sounds."""
    refused: str = ""
    """What the model said to the first."""

    def learned_from(self, error: Exception, batch: int) -> bool:
        """Whether there is something else to try."""
        counted = MISCOUNTED.search(str(error))
        places = 0 if counted is None else int(counted[1]) // batch
        if self.placeholders == 0 and 0 < places <= MOST_PLACEHOLDERS:
            self.placeholders = places
            return True
        self.layout, self.placeholders = self.layout + 1, 0
        return self.layout < self.layouts


def _counting(model: torch.nn.Module) -> None:
    """Models look up the places of images with a method of one name; what they need there is known when they do."""
    for module in model.modules():
        original = getattr(module, "get_placeholder_mask", None)
        if original is not None:
            module.get_placeholder_mask = functools.partial(_counted, original)  # type: ignore[assignment]


def _counted(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Its complaint in a form that `Inputs` learns from: places that images or sounds need."""
    try:
        return original(*args, **kwargs)
    except (ValueError, RuntimeError) as error:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        features = [each for name, value in given.items() if name.endswith("features") for each in tree_leaves(value)]
        needed = sum(each.numel() for each in features if isinstance(each, torch.Tensor))
        raise ValueError(f"tokens other than features: {needed // given['inputs_embeds'].shape[-1]}: {error}") from None


class Batch:
    """Makes the inputs that a model's forward asks for."""

    def __init__(self, model: Any, config: Any, task: str, request: CaptureRequest, inputs: Inputs) -> None:
        self._config, self._task, self._request, self._inputs = config, task, request, inputs
        self._names = set(inspect.signature(model.forward).parameters)
        self._main = getattr(model, "main_input_name", "input_ids")
        self._text = config.get_text_config() if hasattr(config, "get_text_config") else config
        self._signals = self._layouts()
        _counting(model)
        books = getattr(config, "num_codebooks", None)
        self._books = books if isinstance(books, int) and not self._signals and "input_ids" in self._names else None
        inputs.layouts = 3 if self._books else max(1, len(self._signals))

    def __call__(self) -> dict[str, Any]:
        signals = self._signals[self._inputs.layout] if self._signals else {}
        if self._signals and not signals:
            assume(TEXT_ALONE)
        batch = {name: self._made(name, shape) for name, shape in signals.items()}
        if self._takes_text():
            batch |= self._tokens()
        return batch | self._beside() | self._targets(batch)

    def _takes_text(self) -> bool:
        """Where sounds or images are the main input, text is what comes out, but for models that take both."""
        if self._main in ("input_ids", "inputs_embeds") or not self._signals:
            return "input_ids" in self._names
        return "input_ids" in self._names and self._main == "pixel_values"

    # -- text ----------------------------------------------------------------------------------------------------------

    def _tokens(self) -> dict[str, Any]:
        """Plain tokens, after those that stand for an image or a sound; the last ends the text."""
        size, length, places = self._request.batch, self._length(), self._inputs.placeholders
        ids = torch.full((size, places + length), self._plain())
        if places:
            ids[:, :places] = self._placeholder()
        ends = getattr(self._text, "eos_token_id", None)
        if isinstance(ends, int) and 0 <= ends < getattr(self._text, "vocab_size", 0):
            ids[:, -1] = ends
        ids = self._in_books(ids).to(DEVICE)
        found = {"input_ids": ids, "attention_mask": torch.ones(ids.shape[:2], dtype=torch.int64, device=DEVICE)}
        for name in {"token_type_ids", "mm_token_type_ids"} & self._names if self._task == "image-text-to-text" else ():
            found[name] = (ids == self._placeholder()).long()
        return found

    def _in_books(self, ids: torch.Tensor) -> torch.Tensor:
        """Where sounds are written as tokens, there may be one of each book, and one of text, at each place."""
        if self._books is None:
            return ids
        several = [self._books + 1, self._books]
        order = [*several, 0] if self._task == "speech-seq2seq" else [0, *several]
        count = order[self._inputs.layout]
        return ids[..., None].expand(-1, -1, count).contiguous() if count else ids

    def _length(self) -> int:
        if self._request.sequence is not None:
            return self._request.sequence
        longest = getattr(self._text, "max_position_embeddings", None)
        if isinstance(longest, int) and longest > 0:  # some say -1: any length
            return min(longest, LONGEST_DEFAULT_TOKENS)
        return LONGEST_DEFAULT_TOKENS

    def _plain(self) -> int:
        """A token without a meaning of its own."""
        special = {value for config in (self._config, self._text) for value in _special_tokens(config)}
        return next(each for each in range(PLAIN_TOKEN, PLAIN_TOKEN + len(special) + 1) if each not in special)

    def _placeholder(self) -> int:
        kinds = ("image", "audio") if "pixel_values" in self._names else ("audio", "image")
        for kind in kinds:
            for name in (f"{kind}_token_id", f"{kind}_token_index"):
                found = getattr(self._config, name, None)
                if isinstance(found, int):
                    return found
        return -1

    # -- images and sounds ---------------------------------------------------------------------------------------------

    def _layouts(self) -> list[dict[str, Any]]:
        """Name → shape, or the values themselves; those likelier for the model first. Nothing: text alone."""
        if self._main == "pixel_values" or (self._task == "image-text-to-text" and "pixel_values" in self._names):
            beside_text = [{}] if self._main != "pixel_values" else []
            return self._images() + beside_text
        if self._main in ("input_features", "input_values"):
            return self._sounds(self._main)
        for name in ("input_values", "input_features"):
            if (self._main not in self._names or self._main == "inputs") and name in self._names:
                return self._sounds(name)
        return []

    def _images(self) -> list[dict[str, Any]]:
        vision = getattr(self._config, "vision_config", self._config)
        size, side, channels = self._request.batch, self._request.image or _side(vision), _channels(vision)
        if "image_grid_thw" in self._names:
            return self._patches(vision)
        frames = getattr(vision, "num_frames", None)
        one = {"pixel_values": (size, channels, side, side)}
        if isinstance(frames, int):
            return [{"pixel_values": (size, frames, channels, side, side)}, one]
        sizes = {"image_sizes": [[side, side]] * size} if "image_sizes" in self._names else {}
        several = [{"pixel_values": (size, count, channels, side, side), **sizes} for count in (1, 3)]
        return [*several[::-1], one | sizes, one] if sizes else [one, several[0]]

    def _patches(self, vision: Any) -> list[dict[str, Any]]:
        """Of an image that is cut up before the model sees it; `image_grid_thw` says how."""
        patch = int(getattr(vision, "patch_size", 14))
        merged = patch * int(getattr(vision, "spatial_merge_size", 2))
        count = max(1, (self._request.image or _side(vision, 224)) // merged) * merged // patch
        number, channels = self._request.batch * count * count, _channels(vision)
        grid = {"image_grid_thw": [[1, count, count]] * self._request.batch}
        shapes = [
            (number, channels * int(getattr(vision, "temporal_patch_size", 1)) * patch * patch),
            (number, channels, patch, patch),
        ]
        return [{"pixel_values": shape, **grid} for shape in shapes]

    def _sounds(self, name: str) -> list[dict[str, Any]]:
        """Samples, or frames of a spectrum, either of time and frequency first."""
        size, encoder = self._request.batch, _sound_config(self._config)
        longest = getattr(encoder, "max_source_positions", None)
        bins = next((v for each in BINS if isinstance(v := getattr(encoder, each, None), int)), None)
        if name == "input_values" and bins is None:
            samples = self._request.sequence or 16_000
            return [{name: (size, samples)}, {name: (size, 1, samples)}]
        frames = getattr(encoder, "max_length", None) if name == "input_values" else None
        frames = frames or (2 * longest if isinstance(longest, int) and longest <= 3000 else FRAMES)
        shapes = [(size, frames, bins or 80), (size, bins or 80, frames)]
        if hasattr(encoder, "num_mel_bins") and isinstance(longest, int):
            shapes.reverse()
        found: list[dict[str, Any]] = [{name: shape} for shape in shapes]
        if name == "input_values":
            return [*found, {name: (size, 16_000)}]
        return found + [{name: shape, "attention_mask": [[1] * frames] * size} for shape in shapes]

    def _made(self, name: str, shape: Any) -> torch.Tensor:
        if isinstance(shape, list):
            return torch.tensor(shape).to(DEVICE)
        return torch.empty(shape, dtype=weights_dtype(self._request), device=DEVICE)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _beside(self) -> dict[str, Any]:
        """What some models ask for beside text: boxes of words, regions of an image."""
        size, found = self._request.batch, {}
        if "bbox" in self._names and self._takes_text():
            found["bbox"] = self._integers(size, self._length(), 4)
        if "visual_feats" in self._names:
            width, places = getattr(self._config, "visual_feat_dim", 2048), getattr(self._config, "visual_pos_dim", 4)
            found["visual_feats"] = self._made("visual_feats", (size, 36, width))
            found["visual_pos"] = self._made("visual_pos", (size, 36, places))
        return found

    def _targets(self, batch: dict[str, Any]) -> dict[str, Any]:
        size = self._request.batch
        if self._task in (*LABELLED, "speech-seq2seq") and "input_ids" in batch:
            return {"labels": self._integers(*batch["input_ids"].shape[:2])}
        if self._task in (*LABELLED, "speech-seq2seq"):
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
        """Ones, where models may read them; large maps of labels are only counted."""
        if prod(shape) > 1 << 16:
            return torch.empty(shape, dtype=torch.int64, device=DEVICE)
        return torch.ones(shape, dtype=torch.int64, device=DEVICE)


BINS = ("num_mel_bins", "num_mels", "input_feat_per_channel", "feature_size", "input_dim", "feat_dim")


def _special_tokens(config: Any) -> list[int]:
    found = [value for name, value in vars(config).items() if name.endswith(("token_id", "token_index"))]
    return [value for value in found if isinstance(value, int)]


def _sound_config(config: Any) -> Any:
    """The part that the sound goes into."""
    for name in ("audio_config", "encoder_config", "speech_encoder", "encoder", "audio_encoder_config"):
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict"):
            return part
    return config


def _channels(config: Any) -> int:
    found = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    return found if isinstance(found, int) else 3


def _side(config: Any, default: int = 224) -> int:
    size = getattr(config, "image_size", None) or default
    return int(size[0] if isinstance(size, list | tuple) else size)
