"""Do two executions of one window give the same gradient? Measured, not argued."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

__all__ = ["Deviation", "compare_gradients", "couples_samples", "gradients", "holds", "without_dropout"]

RELATIVE_LIMIT = {"fp64": 1e-10, "fp32": 1e-5, "tf32": 1e-2}
"""Largest |candidate - reference| / |reference| that rounding explains."""
ROUNDING_FACTOR, MOST_ROUNDING = 4.0, 10.0
"""A gradient that nearly cancels has more rounding in it: so many times what was measured of it is let pass, and at
most so many times the limit."""
COSINE_LIMIT = 0.999
"""What 16-bit rounding leaves of the gradient's direction."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A candidate gradient against a reference, over all parameters at once."""

    relative: float
    """|candidate - reference| / |reference|."""
    cosine: float
    scale: float
    """|candidate| / |reference|: 1 unless samples are weighed differently."""
    worst: str
    """The parameter that contributes most to the difference."""

    def __str__(self) -> str:
        return f"relative {self.relative:.1e}, cosine {self.cosine:.6f}, scale {self.scale:.4f}, most in {self.worst}"


def compare_gradients(reference: Mapping[str, torch.Tensor], candidate: Mapping[str, torch.Tensor]) -> Deviation:
    """Both as {parameter name: gradient}; a missing one counts as zero."""
    dot = reference_square = candidate_square = 0.0
    differences: dict[str, float] = {}
    for name in reference.keys() | candidate.keys():
        left, right = _pair(reference.get(name), candidate.get(name))
        differences[name] = float((left - right).square().sum())
        dot += float((left * right).sum())
        reference_square += float(left.square().sum())
        candidate_square += float(right.square().sum())
    return _deviation(differences, dot, reference_square**0.5, candidate_square**0.5)


def _pair(left: torch.Tensor | None, right: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    present = left if left is not None else right
    assert present is not None
    left, right = (torch.zeros_like(present) if side is None else side for side in (left, right))
    # Sums over millions of squares need more digits than the gradients have.
    return left.double(), right.double()


def _deviation(differences: dict[str, float], dot: float, reference: float, candidate: float) -> Deviation:
    if not differences or reference == 0:
        same = candidate == 0
        return Deviation(
            relative=0.0 if same else float("inf"), cosine=float(same), scale=float(same), worst="no gradient"
        )
    return Deviation(
        relative=sum(differences.values()) ** 0.5 / reference,
        cosine=dot / (reference * candidate) if candidate else 0.0,
        scale=candidate / reference,
        worst=max(differences, key=differences.__getitem__),
    )


def holds(deviation: Deviation, precision: str, rounding: float = 0.0) -> bool:
    """Whether a deviation is rounding in this precision and nothing else.

    `rounding` is the relative deviation of the reference from itself, computed in another order.
    """
    if precision in RELATIVE_LIMIT:
        limit = RELATIVE_LIMIT[precision]
        return deviation.relative <= max(limit, min(ROUNDING_FACTOR * rounding, MOST_ROUNDING * limit))
    return deviation.cosine >= COSINE_LIMIT and abs(deviation.scale - 1) <= 0.02


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients a model holds."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that trains without randomness: dropout differs by construction when samples are grouped differently."""
    clone = copy.deepcopy(model)
    for module in clone.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in _dropout_rates(module):
            setattr(module, name, 0.0)
    return clone.train()


def _dropout_rates(module: torch.nn.Module) -> Iterable[str]:
    """Attributes by which layers hand dropout to functional calls: `attention_dropout`, `drop_path_rate`, …"""
    return [n for n, value in vars(module).items() if "drop" in n and isinstance(value, float) and 0 < value < 1]


def couples_samples(model: torch.nn.Module) -> str | None:
    """The first layer whose output for one sample depends on the others of its micro-batch, or None."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.track_running_stats | module.training:
            return f"{name} ({type(module).__name__})"
    return None
