"""Kernels that compute the same thing faster: chosen by measurement, applied in place, taken off again."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from nearpeak.errors import UnsupportedError
from nearpeak.reason import Reason
from nearpeak.train.cpu_dropout import BitDropout
from nearpeak.train.packed import find_blocks
from nearpeak.train.untraced import random_state_kept

__all__ = [
    "Kernels",
    "OneDnnLinear",
    "apply_attention",
    "apply_compile",
    "apply_dropout",
    "apply_kernels",
    "apply_matmul",
    "fastest_dropout",
    "fastest_kernels",
    "fastest_matmul",
    "fuse_optimizer",
]

Undo = Callable[[], None]


class Kernels(NamedTuple):
    """What replaces torch's own kernels on CPUs."""

    matmul: str = "keep"
    dropout: str = "keep"


WORTH_IT = 1.1
"""A kernel must be this much faster to be worth leaving torch's own."""


class _OneDnnLinear(torch.autograd.Function):
    """x·Wᵀ + b and its gradients in oneDNN's fp32, which on AMD CPUs is twice as fast as the MKL that torch calls."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.has_bias = bias is not None
        return _onednn(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, weight = ctx.saved_tensors
        gradient = grad_outputs[0].contiguous()
        # A gradient that is itself differentiated (a gradient penalty) needs operators that autograd knows.
        product = functional.linear if torch.is_grad_enabled() else _onednn
        for_rows = product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        for_weight = product(gradient.t(), rows.t()) if ctx.needs_input_grad[1] else None
        return for_rows, for_weight, gradient.sum(0) if ctx.has_bias else None


def _onednn(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


class OneDnnLinear(torch.nn.Linear):
    """`torch.nn.Linear` over oneDNN. Instances change class in place, so weights, names and copies stay as they are."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x·Wᵀ + b; anything but fp32 on a CPU goes torch's way."""
        if input.dtype != torch.float32 or input.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return functional.linear(input, self.weight, self.bias)
        rows = input.reshape(-1, input.shape[-1])
        return _OneDnnLinear.apply(rows, self.weight, self.bias).view(*input.shape[:-1], self.out_features)


def apply_matmul(model: torch.nn.Module, choice: str) -> Undo:
    """Run a model's linear layers over oneDNN (`onednn`) or leave them to torch (`keep`)."""
    if choice == "keep":
        return lambda: None
    changed = [m for m in model.modules() if type(m) is torch.nn.Linear]
    for module in changed:
        module.__class__ = OneDnnLinear
    return functools.partial(_set_class, changed, torch.nn.Linear)


def apply_dropout(model: torch.nn.Module, choice: str) -> Undo:
    """Draw dropout from random bits (`bits`) or leave it to torch (`keep`)."""
    if choice == "keep":
        return lambda: None
    changed = [m for m in model.modules() if type(m) is torch.nn.Dropout]
    for module in changed:
        module.__class__ = BitDropout
    return functools.partial(_set_class, changed, torch.nn.Dropout)


def apply_kernels(model: torch.nn.Module, kernels: Kernels) -> Undo:
    """Both at once; the result takes both off again."""
    applied = contextlib.ExitStack()
    applied.callback(apply_matmul(model, kernels.matmul))
    applied.callback(apply_dropout(model, kernels.dropout))
    return applied.close


def fastest_kernels(model: torch.nn.Module, device: torch.device) -> tuple[Kernels, list[Reason]]:
    """What measures faster here, with the measurements; torch's own everywhere but on CPUs."""
    if device.type != "cpu":
        return Kernels(), []
    matmul, matmul_reason = fastest_matmul(model, device)
    dropout, dropout_reason = fastest_dropout(model)
    return Kernels(matmul, dropout), [matmul_reason, dropout_reason]


def _set_class(modules: Sequence[torch.nn.Module], kind: type[torch.nn.Module]) -> None:
    for module in modules:
        module.__class__ = kind


def fastest_matmul(model: torch.nn.Module, device: torch.device, tokens: int = 512) -> tuple[str, Reason]:
    """Measure the model's commonest linear layer both ways, forward and backward."""
    linears = [m for m in model.modules() if type(m) is torch.nn.Linear and m.weight.dtype == torch.float32]
    if device.type != "cpu" or not linears or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "keep", Reason(
            "matmul=keep", "torch's own products are the only ones for this device and these weights."
        )
    if not torch.backends.mkldnn.is_available():
        return "keep", Reason("matmul=keep", "this build of torch has no oneDNN.")
    largest = max(linears, key=lambda m: m.weight.numel() if m.weight.numel() < 2**24 else 0)
    times_ms = _matmul_ms(largest, tokens)
    ratio = times_ms["keep"] / times_ms["onednn"]
    choice = "onednn" if ratio >= WORTH_IT else "keep"
    shape = f"{tokens}×{largest.in_features}×{largest.out_features}"
    because = (
        f"oneDNN takes {1 / ratio:.2f} of the time of torch's default for an fp32 product of {shape}, same rounding."
    )
    return choice, Reason(f"matmul={choice}", because, {"keep_ms": times_ms["keep"], "onednn_ms": times_ms["onednn"]})


def fastest_dropout(model: torch.nn.Module, elements: int = 2**18) -> tuple[str, Reason]:
    """Measure a dropout mask both ways."""
    if not any(type(m) is torch.nn.Dropout and m.p > 0 for m in model.modules()):
        return "keep", Reason("dropout=keep", "The model has no dropout.")
    values = torch.ones(elements)
    bits, plain = BitDropout(0.1), torch.nn.Dropout(0.1)
    with random_state_kept():
        times_ms = interleaved_ms({"keep": lambda: plain(values), "bits": lambda: bits(values)})
    ratio = times_ms["keep"] / times_ms["bits"]
    choice = "bits" if ratio >= WORTH_IT else "keep"
    because = f"16 random bits an element take {1 / ratio:.2f} of the time of torch's mask, at the same rate."
    return choice, Reason(f"dropout={choice}", because, {f"{name}_ms": ms for name, ms in times_ms.items()})


def _matmul_ms(layer: torch.nn.Linear, tokens: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(tokens, layer.in_features, generator=generator)
    weight = layer.weight.detach().clone().requires_grad_()
    return interleaved_ms(
        {
            "keep": lambda: torch.autograd.grad(functional.linear(rows, weight).sum(), weight),
            "onednn": lambda: torch.autograd.grad(_OneDnnLinear.apply(rows, weight, None).sum(), weight),
        }
    )


def interleaved_ms(runs: dict[str, Callable[[], Any]], repeats: int = 6) -> dict[str, float]:
    """The best of a few interleaved runs: what each can do when nothing disturbs it."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def fuse_optimizer(optimizer: torch.optim.Optimizer, wanted: bool, model: torch.nn.Module) -> Reason:
    """Switch an optimizer that has a fused kernel to it: one pass over the weights in place of a dozen."""
    groups = optimizer.param_groups
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        return Reason("fused_optimizer=no", "An embedding has sparse gradients, which fused kernels do not know.")
    if not wanted or "fused" not in optimizer.defaults or not getattr(optimizer, "_step_supports_amp_scaling", True):
        return Reason("fused_optimizer=no", f"{type(optimizer).__name__} has no fused kernel." if wanted else "As set.")
    if any(group.get("foreach") or group.get("capturable") or group.get("differentiable") for group in groups):
        return Reason("fused_optimizer=no", "The optimizer was made with another kernel by name.")
    parameters = [p for group in groups for p in group["params"]]
    if not all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps", "xpu") for p in parameters):
        return Reason(
            "fused_optimizer=no", "Some parameters are on a device or of a type that the kernel does not know."
        )
    for group in groups:
        group["fused"], group["foreach"] = True, False
    return Reason("fused_optimizer=yes", f"{type(optimizer).__name__} updates all weights in one pass.")


def apply_attention(model: torch.nn.Module, choice: str) -> Undo:
    """Switch a Hugging Face model's attention kernel."""
    if choice == "keep":
        return lambda: None
    config: Any = getattr(model, "config", None)
    switch: Any = getattr(model, "set_attn_implementation", None)
    if config is None or switch is None:
        raise UnsupportedError(f"attention={choice!r}: {type(model).__name__} is not a transformers model; use 'keep'.")
    before = config._attn_implementation
    try:
        switch(choice)
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"attention={choice!r} does not run here: {error}") from error
    return lambda: switch(before)


def apply_compile(model: torch.nn.Module, choice: str, backend: str = "inductor") -> tuple[Undo, Reason]:
    """Compile each block of the stack, once for all: they are alike, and sizes are symbols rather than constants."""
    if choice == "none":
        return lambda: None, Reason("compile=none", "Blocks run as they are.")
    found = find_blocks(model)
    if found is None:
        raise UnsupportedError(
            f"compile='blocks': {type(model).__name__} has no ModuleList of blocks; use compile='none'."
        )
    for block in found[1]:
        block.compile(dynamic=True, backend=backend)
    reason = Reason("compile=blocks", f"{len(found[1])} blocks of {found[0]} share one graph for every length.")
    return functools.partial(_uncompile, list(found[1])), reason


def _uncompile(blocks: list[torch.nn.Module]) -> None:
    for block in blocks:
        block._compiled_call_impl = None
