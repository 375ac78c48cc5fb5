"""The training loops behind measured runs, as functions that `CaptureRequest(kind="function")` builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def timm_training(*, model: str, batch: int) -> Any:
    """timm's `train.py` with its defaults: SGD with Nesterov momentum and weight decay, smoothed labels, and a loader
    that has the next batch on the device while a step runs."""
    net, (channels, height, width) = _timm_model(model)

    def batches() -> Any:
        return _images(batch, channels, height, width), _images(batch, channels, height, width)

    def loss(net: torch.nn.Module, batches: Any) -> Any:
        output = _first(net(batches[0][0]))
        return torch.nn.functional.cross_entropy(output, batches[0][1], label_smoothing=0.1), output

    return net, batches, loss, _timm_sgd(weight_decay=2e-5)


def timm_benchmark(*, model: str, batch: int, image: int, channels_last: bool = False) -> Any:
    """timm's `benchmark.py --bench train`: the same made-up batch in each step, SGD of torch 1.12, which went over
    parameters one by one."""
    net, (channels, _, _) = _timm_model(model, image)

    def batches() -> Any:
        images, classes = _images(batch, channels, image, image)
        return images.contiguous(memory_format=torch.channels_last) if channels_last else images, classes

    def loss(net: torch.nn.Module, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(_first(net(batch[0])), batch[1])

    return net, batches, loss, _timm_sgd(weight_decay=0.0, foreach=False)


def _timm_model(name: str, image: int | None = None) -> tuple[torch.nn.Module, tuple[int, int, int]]:
    from nearpeak.predict.pretend.vision import stand_in_for_torchvision

    stand_in_for_torchvision()
    import timm  # pyright: ignore[reportMissingImports]

    settings = timm.create_model(name, pretrained=False).default_cfg
    size = settings.get("input_size", (3, 224, 224))
    if image is None or image == size[-1]:
        return timm.create_model(name, pretrained=False), size
    try:
        return timm.create_model(name, pretrained=False, img_size=image), (size[0], image, image)
    except TypeError:  # a network of convolutions takes any size as it is
        return timm.create_model(name, pretrained=False), (size[0], image, image)


def _images(batch: int, channels: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.empty(batch, channels, height, width, device="cuda"),
        torch.empty(batch, dtype=torch.int64, device="cuda"),
    )


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple | list) else output


def _timm_sgd(*, weight_decay: float, **arguments: Any) -> Callable[[torch.nn.Module], Any]:
    from timm.optim import create_optimizer_v2  # pyright: ignore[reportMissingImports]

    settings = {"opt": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": weight_decay}
    return lambda net: create_optimizer_v2(net, **settings, **arguments)
