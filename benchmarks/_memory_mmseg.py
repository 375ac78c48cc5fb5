"""MMSegmentation's models as their own configurations say, with the batch and crop of a table's row.

Needs mmsegmentation, mmengine and mmcv (the variant without compiled operators will do).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def build(*, config: str, samples: int, height: int, width: int) -> Any:
    """(model, batch, loss, optimizer) of a configuration file."""
    _stand_in_for_compiled_operators()
    from mmengine.config import Config  # pyright: ignore[reportMissingImports]

    settings = Config.fromfile(str(_configurations() / config))
    model = _model(settings)

    def batch() -> Any:
        images = torch.empty(samples, 3, height, width, device="cuda")
        return images, _labels(samples, height, width)

    def loss(model: Any, batch: Any) -> Any:
        losses = model.loss(*batch)
        parts = [value.mean() for name, value in losses.items() if "loss" in name]
        return sum(parts[1:], parts[0])

    return model, batch, loss, _optimizer(settings)


def _stand_in_for_compiled_operators() -> None:
    """mmcv looks its compiled operators up when it is imported; few models call one."""
    sys.modules.setdefault("mmcv._ext", _Anything("mmcv._ext"))
    import mmcv  # pyright: ignore[reportMissingImports]

    mmcv.__version__ = "2.1.0"  # mmsegmentation asks for less than 2.2


class _Anything(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return types.SimpleNamespace()


def _configurations() -> Path:
    import mmseg  # pyright: ignore[reportMissingImports]

    return Path(mmseg.__file__).parent / ".mim/configs"


def _model(settings: Any) -> torch.nn.Module:
    from mmseg.registry import MODELS  # pyright: ignore[reportMissingImports]
    from mmseg.utils import register_all_modules  # pyright: ignore[reportMissingImports]

    register_all_modules()
    settings.model.pretrained = None
    for part in (settings.model, settings.model.get("backbone", {})):
        part["init_cfg"] = None
    return MODELS.build(settings.model)


def _labels(samples: int, height: int, width: int) -> list[Any]:
    from mmengine.structures import PixelData  # pyright: ignore[reportMissingImports]
    from mmseg.structures import SegDataSample  # pyright: ignore[reportMissingImports]

    made = []
    for _ in range(samples):
        sample = SegDataSample(metainfo={"img_shape": (height, width), "pad_shape": (height, width)})
        sample.gt_sem_seg = PixelData(data=torch.empty(1, height, width, dtype=torch.int64, device="cuda"))
        made.append(sample)
    return made


def _optimizer(settings: Any) -> Callable[[torch.nn.Module], Any]:
    values = dict(settings.optim_wrapper.optimizer)
    kind = getattr(torch.optim, values.pop("type"))
    return lambda model: kind(model.parameters(), **values, foreach=False)
