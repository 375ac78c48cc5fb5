"""Small steps to capture: each returns (model, batch[, loss[, optimizer]])."""

from __future__ import annotations

import time
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
