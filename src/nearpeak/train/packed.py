"""Unpadded execution: all samples of a micro-batch in one row, each attending only to itself.

An unmodified Hugging Face model runs a packed row if three things happen around it: its attention is told where samples
begin and end, its positions restart at every sample, and a head that pools the first token finds one row per sample.
The first goes through transformers' public table of attention functions; the last is one forward hook on the stack of
layers, which hands on the first tokens as [samples, 1, hidden]. The user's head and loss run unchanged on what follows.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from nearpeak.errors import UnsupportedError
from nearpeak.reason import Reason
from nearpeak.train.batches import IGNORED_LABEL, Packing, pack_rows
from nearpeak.train.cpu_attention import attend_with_dropout

__all__ = ["PackFormat", "PackedAdapter", "find_blocks", "packed_attention"]

ATTENTION_NAME = "nearpeak_packed"
FIRST_TOKEN_HEADS = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "modernbert")
"""Model types whose sequence heads read the first token only (`classifier_pooling` is checked besides)."""
POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")
"""Model types that number positions from pad_token_id + 1."""
UNDERSTOOD = {
    "sliding_window",
    "is_causal",
    "scaling",
    "dropout",
    "deterministic",
    "position_ids",
    "use_cache",
    "output_attentions",
    "num_items_in_batch",  # transformers' Trainer hands it through the whole model; it says nothing about attention
}

# The attention function is called by the model's layers with no way to pass an object to it that every model hands on,
# and recomputation calls it again in backward, on another thread on CUDA: a module variable, not a context variable.
_active: list[Packing] = []


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface over a packed row: [1, heads, tokens, width] → [1, tokens, heads, width]."""
    if not _active:
        raise UnsupportedError("Packed attention ran outside of a packed micro-batch.")
    unknown = sorted(
        name for name, given in kwargs.items() if given is not None and given is not False and name not in UNDERSTOOD
    )
    if attention_mask is not None or unknown:
        raise UnsupportedError(
            f"Packed attention does not know {', '.join(unknown) or 'this mask'} of {type(module).__name__}."
        )
    packing = _active[-1]
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    arguments = {
        "scale": scaling,
        "dropout_p": dropout,
        "is_causal": causal,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    window = sliding_window if sliding_window is not None and packing.longest > sliding_window else None
    if query.is_cuda and window is None:
        return _varlen(query, key, value, packing, arguments), None
    return _each_by_itself(query, key, value, packing, window, arguments), None


def _each_by_itself(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    window: int | None,
    arguments: dict[str, Any],
) -> torch.Tensor:
    """One attention call for each run of equally long samples."""
    runs = _equal_runs(packing.lengths)
    dropout, causal = arguments["dropout_p"], arguments["is_causal"]
    if dropout and window is None and query.device.type == "cpu" and not arguments["enable_gqa"]:
        return attend_with_dropout(query[0], key[0], value[0], runs, arguments["scale"], dropout, causal)[None]
    sizes = [samples * length for samples, length in runs]
    outputs = []
    parts = zip(runs, *(tensor[0].split(sizes, dim=1) for tensor in (query, key, value)), strict=True)
    for (samples, length), *qkv in parts:
        q, k, v = (part.unflatten(1, (samples, length)).transpose(0, 1) for part in qkv)
        mask = (
            _band(length, window, q.device, arguments["is_causal"]) if window is not None and length > window else None
        )
        options = arguments if mask is None else {**arguments, "is_causal": False}
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None]


def _equal_runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(samples, length) of neighbours that are equally long."""
    runs: list[tuple[int, int]] = []
    for length in lengths:
        if runs and runs[-1][1] == length:
            runs[-1] = (runs[-1][0] + 1, length)
        else:
            runs.append((1, length))
    return runs


def _band(length: int, window: int, device: torch.device, causal: bool) -> torch.Tensor:
    """Local attention as transformers hands it to kernels: tokens less than `window` apart (only back, if causal)."""
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions[None, :]
    return (distance >= 0) & (distance < window) if causal else distance.abs() < window


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    arguments: dict[str, Any],
) -> torch.Tensor:
    """One kernel for all samples: variable-length flash attention, or the memory-efficient one (fp32, dropout)."""
    bounds, longest = packing.cu_seqlens.to(query.device), packing.longest
    if arguments["enable_gqa"]:  # not every release's kernels take fewer heads of keys than of queries
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], dim=1) for t in (key, value))
    if arguments["dropout_p"] == 0 and query.dtype in (torch.float16, torch.bfloat16) and _has_varlen():
        return _flash(query, key, value, bounds, longest, arguments)
    return torch.ops.aten._efficient_attention_forward(
        *(tensor.transpose(1, 2) for tensor in (query, key, value)),
        None,
        bounds,
        bounds,
        longest,
        longest,
        arguments["dropout_p"],
        int(arguments["is_causal"]),
        True,  # keep what backward needs
        scale=arguments["scale"],
    )[0]


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    arguments: dict[str, Any],
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    # The causal window of torch's kernel is (-1, 0): everything before, nothing after.
    size = (-1, 0) if arguments["is_causal"] else (-1, -1)
    output: Any = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=arguments["scale"], window_size=size)
    return output[None]


@cache
def _has_varlen() -> bool:
    """torch 2.10 and later; the first release that had it took no window."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in inspect.signature(varlen_attn).parameters


def find_blocks(model: torch.nn.Module) -> tuple[str, torch.nn.ModuleList] | None:
    """The stack of like layers that makes up most of a model, with its qualified name; None where there is none."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 0]
    if not lists:
        return None
    # Of equally large ones (a list inside a list's only member) the outermost, which named_modules yields first.
    return max(lists, key=lambda item: sum(p.numel() for p in item[1].parameters()))


@dataclass(frozen=True, slots=True)
class PackFormat:
    """What a model wants of a packed row; small and picklable, since loader workers do the packing."""

    first_position: int = 0
    """The position of a sample's first token."""
    shifts_labels: bool = False
    """Whether each token predicts the next one's label."""

    def pack(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Packing]:
        """A padded batch as one packed row."""
        packed, packing = pack_rows(batch)
        if self.first_position and "position_ids" not in batch:
            packed["position_ids"] = packed["position_ids"] + self.first_position
        if self.shifts_labels and not packing.pooled:
            # The label of a sample's first token would be predicted by the last token of the sample before it.
            starts = packing.cu_seqlens[:-1].long().to(packed["labels"].device)
            packed["labels"] = packed["labels"].index_fill(1, starts, IGNORED_LABEL)
        return packed, packing


class PackedAdapter:
    """Runs packed rows through an unmodified Hugging Face model."""

    def __init__(self, model: torch.nn.Module, stack: torch.nn.Module, format: PackFormat):
        self.config: Any = model.config
        self.stack, self.format = stack, format
        _register_attention()

    @staticmethod
    def find(model: torch.nn.Module) -> tuple[PackedAdapter | None, Reason]:
        """An adapter for this model, or None and what stands in the way."""
        obstacle = _obstacle(model)
        if obstacle is not None:
            return None, Reason("packed=unavailable", obstacle)
        blocks = find_blocks(model)
        assert blocks is not None
        stack = model.get_submodule(blocks[0].rpartition(".")[0])
        config: Any = model.config
        kind = getattr(config, "model_type", "")
        first = config.pad_token_id + 1 if kind in POSITIONS_AFTER_PADDING else 0
        adapter = PackedAdapter(model, stack, PackFormat(first, shifts_labels=_head_of(model) == "causal"))
        return adapter, Reason(
            "packed=available", f"{kind} layers take their attention from transformers' public table."
        )

    def pack(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Packing]:
        """A padded batch as one packed row, in this model's format."""
        return self.format.pack(batch)

    @contextlib.contextmanager
    def __call__(self, packing: Packing) -> Iterator[None]:
        """Keep it open over forward and backward: recomputation runs the attention again."""
        before = self.config._attn_implementation
        hook = self.stack.register_forward_hook(self._first_tokens) if packing.pooled else None
        self.config._attn_implementation = ATTENTION_NAME
        _active.append(packing)
        try:
            yield
        finally:
            _active.pop()
            self.config._attn_implementation = before
            if hook is not None:
                hook.remove()

    @staticmethod
    def _first_tokens(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        starts = _active[-1].cu_seqlens[:-1].long()
        hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
        first = hidden[0].index_select(0, starts.to(hidden.device))[:, None]
        if isinstance(output, tuple):
            return (first, *output[1:])
        output.last_hidden_state = first
        return output


def _obstacle(model: torch.nn.Module) -> str | None:
    """Why a model cannot run packed rows, or None."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "_attn_implementation"):
        return "it is not a transformers model."
    kind = getattr(config, "model_type", "")
    if not getattr(model, "_supports_sdpa", False) or not getattr(model, "_supports_attention_backend", False):
        return f"{kind} does not take its attention from transformers' public table."
    if find_blocks(model) is None:
        return f"{kind} has no stack of layers."
    if _head_of(model) in ("causal", "token"):
        return None
    if kind not in FIRST_TOKEN_HEADS:
        return f"{kind} is not known to pool the first token."
    if getattr(config, "classifier_pooling", "cls") != "cls":
        return f"its head pools by {config.classifier_pooling}, over padding that packing has not."
    return None


def _head_of(model: torch.nn.Module) -> str:
    """`causal` (predicts the next token), `token` (one prediction a token) or `sequence`."""
    from transformers.models.auto import modeling_auto as known

    name = type(model).__name__
    if name in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "causal"
    per_token = (known.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, known.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    return "token" if any(name in names.values() for names in per_token) else "sequence"


def _register_attention() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, packed_attention)
