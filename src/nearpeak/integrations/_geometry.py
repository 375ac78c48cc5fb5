"""How a Trainer's batches make up its windows, and whether another geometry would make the same ones."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy
import torch

from nearpeak.errors import ResumeError
from nearpeak.integrations._obstacles import overridden

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Trainer

__all__ = ["Geometry", "check_geometry", "geometry_of", "machine", "versions"]

ORDER_BY_BATCH = ("group_by_length", "batch_rebalance")
"""Sampling strategies whose order follows from the size of a rank's batches."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the samples of one optimizer step are spread."""

    ranks: int
    per_device: int
    accumulation: int
    global_batch: int
    samples: int | None
    """Of the training data; None where it does not know."""
    epoch_samples: int | None
    """What an epoch consumes: with several ranks some samples twice, to make their batches even."""
    sampling: str

    @property
    def split(self) -> str:
        """How people write it."""
        return f"{self.per_device} per device × {self.accumulation} accumulated × {self.ranks} ranks"


def geometry_of(trainer: Trainer) -> Geometry:
    """This script's, on these ranks."""
    args = trainer.args
    data = trainer.train_dataset
    samples = len(data) if data is not None and hasattr(data, "__len__") else None  # pyright: ignore[reportArgumentType]
    per_device = trainer._train_batch_size
    sampling = getattr(args, "train_sampling_strategy", None) or (
        "group_by_length" if getattr(args, "group_by_length", False) else "random"
    )
    return Geometry(
        ranks=args.world_size,
        per_device=per_device,
        accumulation=args.gradient_accumulation_steps,
        global_batch=per_device * args.gradient_accumulation_steps * args.world_size,
        samples=samples,
        epoch_samples=None if samples is None else _epoch_samples(trainer, samples, per_device, args.world_size),
        sampling=str(getattr(sampling, "value", sampling)),
    )


def _epoch_samples(trainer: Trainer, samples: int, per_device: int, ranks: int) -> int:
    round_of_batches = per_device * ranks
    if trainer.args.dataloader_drop_last:
        return samples // round_of_batches * round_of_batches
    even = ranks > 1 and getattr(trainer.args.accelerator_config, "even_batches", True)
    return -(-samples // round_of_batches) * round_of_batches if even else samples


def cursor_of(geometry: Geometry, step: int) -> int:
    """Samples consumed after so many steps: the last window of an epoch may be a short one."""
    if not geometry.epoch_samples:
        return step * geometry.global_batch
    updates = -(-geometry.epoch_samples // geometry.global_batch)
    inside = step % updates * geometry.global_batch
    return step // updates * geometry.epoch_samples + min(inside, geometry.epoch_samples)


def check_geometry(path: Path, saved: Geometry, now: Geometry, trainer: Trainer) -> str | None:
    """Refuse what would not make the same windows; otherwise say what changed, if anything did."""
    if saved.global_batch != now.global_batch:
        raise ResumeError(f"{path}: {_other_batch(saved, now)}")
    if (saved.ranks, saved.per_device, saved.accumulation) == (now.ranks, now.per_device, now.accumulation):
        return None if saved.samples == now.samples else _other_data(saved, now)
    why = _other_windows(saved, now, trainer)
    if why is not None:
        raise ResumeError(
            f"{path}: it was saved with {saved.split}, this script has {now.split}. Both make {now.global_batch} "
            f"samples a step, but not the same ones: {why}. Go on with {saved.split}."
        )
    return f"{saved.split} became {now.split}: the same samples in every step, summed in another order"


def _other_batch(saved: Geometry, now: Geometry) -> str:
    way_out = f"Go on with {saved.split}"
    rows = now.per_device * now.ranks
    if saved.global_batch % rows == 0:
        way_out += f", or here with gradient_accumulation_steps={saved.global_batch // rows}"
    return (
        f"its steps took {saved.global_batch} samples ({saved.split}), those of this script take {now.global_batch} "
        f"({now.split}): the position in the data would be another one, and so would be what is learned. {way_out}; "
        "or begin a new training from its weights (from_pretrained), without resume_from_checkpoint."
    )


def _other_data(saved: Geometry, now: Geometry) -> str:
    return f"the training data had {saved.samples} samples and has {now.samples}: the order is another one"


def _other_windows(saved: Geometry, now: Geometry, trainer: Trainer) -> str | None:
    config: Any = trainer.args.accelerator_config
    changed = [name for name in overridden(trainer) if name in ("get_train_dataloader", "_get_train_sampler")]
    if saved.epoch_samples is None or now.epoch_samples is None:
        return "the training data does not know its length"
    if saved.samples != now.samples:
        return _other_data(saved, now)
    if saved.epoch_samples != now.epoch_samples:
        return f"an epoch had {saved.epoch_samples} samples and would have {now.epoch_samples}, to make batches even"
    if saved.sampling != now.sampling or now.sampling in ORDER_BY_BATCH:
        return f"the order of {saved.sampling!r} depends on the batches of a rank"
    if getattr(config, "split_batches", False) or getattr(config, "dispatch_batches", False):
        return "split_batches and dispatch_batches spread samples in another way"
    if changed:
        return f"{type(trainer).__name__} overrides {changed[0]}, so the order cannot be foreseen"
    return None


def versions() -> dict[str, str]:
    """Libraries whose version decides on the last bit."""
    import accelerate
    import transformers

    modules = {"torch": torch, "transformers": transformers, "accelerate": accelerate, "numpy": numpy}
    return {name: str(module.__version__) for name, module in modules.items()}


def machine(trainer: Trainer) -> dict[str, Any]:
    """What else decides on the last bit: the device, and how many threads share a sum."""
    device = trainer.args.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {"device": f"{device.type} {name}", "threads": torch.get_num_threads(), "system": platform.machine()}


def to_json(geometry: Geometry) -> dict[str, Any]:
    """For the manifest."""
    return asdict(geometry)


def world_of_plain(path: Path) -> int:
    """How many ranks saved a checkpoint of plain transformers: each wrote its own random state."""
    names = [name for name in os.listdir(path) if name.startswith("rng_state_")]
    return max(len(names), 1)
