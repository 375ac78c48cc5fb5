"""A plan's kernels and policies on a model, for as long as a context is open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from nearpeak.plan import Plan
from nearpeak.reason import Reason
from nearpeak.train.kernels import Kernels, apply_attention, apply_compile, apply_kernels
from nearpeak.train.precision import tf32
from nearpeak.train.recompute import apply_recompute

__all__ = ["applied"]


@contextlib.contextmanager
def applied(model: torch.nn.Module, plan: Plan) -> Iterator[list[Reason]]:
    """Everything in which a plan changes how the model computes; yields the reasons, and takes it all off again."""
    with contextlib.ExitStack() as stack:
        before = torch.get_num_threads()
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(plan.threads or before)
        stack.enter_context(tf32(plan.precision == "tf32"))
        stack.callback(apply_kernels(model, Kernels(plan.matmul, plan.dropout)))
        stack.callback(apply_attention(model, plan.attention))
        undo, recompute = apply_recompute(model, plan.recompute, plan.recompute_every, plan.recompute_blocks)
        stack.callback(undo)
        undo, compiled = apply_compile(model, plan.compile)
        stack.callback(undo)
        yield [recompute, compiled]
