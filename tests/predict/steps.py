"""Small steps to capture: each returns (model, batch[, loss[, optimizer]])."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


def perceptron(width: int = 1024, layers: int = 3) -> Any:
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
    return model, (torch.empty(256, width),), lambda model, batch: model(batch[0]).sum()


def dropped(p: float = 0.5) -> Any:
    model = nn.Sequential(nn.Dropout(p))
    weight = nn.Parameter(torch.empty(1, 1024))
    model.weight = weight
    return model, (torch.empty(1024, 1024),), lambda model, batch: model(batch[0] * model.weight).sum()


def grouped(groups: int = 4) -> Any:
    model = nn.Sequential(nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=groups, bias=False))
    return model, (torch.empty(8, 64, 16, 16),), lambda model, batch: model(batch[0]).sum()


class Attention(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.project = nn.Linear(256, 768)
        self.masked = masked

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(tokens).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device="cuda") if self.masked else None
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attention(masked: bool = False) -> Any:
    return Attention(masked), (torch.empty(4, 512, 256),), lambda model, batch: model(batch[0]).float().sum()


class Experts(nn.Module):
    """Each token goes through one of four products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 128, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        ends = torch.full((4,), tokens.shape[0], dtype=torch.int32, device="cuda")
        return torch._grouped_mm(tokens, self.weight, offs=ends)


def experts(width: int = 256) -> Any:
    model = nn.Sequential(nn.Linear(128, 128), Experts(width))
    return model, (torch.empty(64, 128),), lambda model, batch: model(batch[0].to(model[0].weight.dtype)).square().sum()


class Norms(nn.Module):
    """Reads a value in forward, and has BatchNorm's state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.frozen = nn.Linear(32, 32).requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.layers(images).mean((2, 3))
        scale = features.abs().max().item()
        return self.frozen(features / scale)


def norms() -> Any:
    return Norms(), (torch.empty(8, 3, 32, 32),), lambda model, batch: model(batch[0]).sum()


class ReturningMore(nn.Module):
    """As models with a head return loss and logits; the loss reads a copy of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 16384, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        logits = self.head(tokens)
        return SimpleNamespace(loss=logits.log_softmax(-1)[:, 0].mean(), logits=logits)


def returning_more() -> Any:
    return ReturningMore(), {"tokens": torch.empty(1024, 64)}


def own_optimizer() -> Any:
    model = nn.Linear(512, 512, bias=False)
    loss = lambda model, batch: model(batch[0]).sum()  # noqa: E731
    return model, (torch.empty(4, 512),), loss, lambda model: Replacing(model.parameters())


class Replacing(torch.optim.Optimizer):
    """Makes new state in each step, as hand-written optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            old = state.get("momentum", torch.zeros_like(parameter))
            state["momentum"] = 0.9 * old + parameter.grad
            parameter.data -= state["momentum"]


class Selecting(nn.Module):
    """Goes by values that follow from its arguments alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 64))
        self.register_buffer("kept", torch.tensor([3, 0, 5]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = (ids == 7).nonzero()  # 4 x 6 ids, three of seven in each row
        rows = self.weight[ids][ids == 7]
        spread = torch.repeat_interleave(rows[:3], self.kept.clamp(min=1), dim=0)
        read = torch.tensor([self.kept.sum(), 1], device="cuda")
        found = (places.shape[0], rows.shape, spread.shape, int(read[0]))
        if found != (12, (12, 64), (9, 64), 8):
            raise ValueError(f"{found}")
        return spread.sum()


def selecting() -> Any:
    ids = [[7, 7, 7, 2, 2, 2]] * 4
    return Selecting(), lambda: torch.tensor(ids).to("cuda"), lambda model, ids: model(ids)


def changed() -> Any:
    """Known values that unknown ones were written over are not known any more."""

    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        ids[0, 0] = model.weight.detach().argmax()
        return model.weight[ids == 7].sum() + int(ids.sum())

    return nn.Linear(6, 4), lambda: torch.zeros(4, 6, dtype=torch.int64, device="cuda"), loss


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return torch.mm(gradient, torch.empty(3, 5, device=gradient.device))


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return FailsInBackward.apply(self.inner(tensor))


def failing_backward() -> Any:
    return Failing(), (torch.empty(4, 4),), lambda model, batch: model(batch[0]).sum()


def leaving() -> Any:
    sys.exit(0)


def killed() -> Any:
    """The process ends in forward, as a fault in a library would have it."""
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
    return model, (torch.empty(4, 4),), lambda model, batch: model(batch[0]).sum()


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"matmul": BadMatmul()})

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.inner["matmul"](tensor)


class BadMatmul(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.mm(tensor, self.weight)


def broken() -> Any:
    return Broken(), (torch.empty(3, 5),), lambda model, batch: model(batch[0]).sum()


def hanging() -> Any:
    time.sleep(60)


def stubborn() -> Any:
    """Takes what interrupts it for an error of its own, once."""
    with contextlib.suppress(Exception):
        time.sleep(60)
    time.sleep(60)


def deaf(pids: str) -> Any:
    """Nothing interrupts it, and it starts a process."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    Path(pids).write_text(f"{os.getpid()} {subprocess.Popen(['sleep', '60']).pid}")
    time.sleep(60)
