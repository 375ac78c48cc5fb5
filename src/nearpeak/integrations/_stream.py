"""A Trainer's loader, so that a resumed training sees the samples and random numbers of an uninterrupted one."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nearpeak.integrations._order import KeptOrder, keep_order
from nearpeak.integrations._seeded import Clock, SeededCollate, SeededData, may_draw
from nearpeak.train.seeding import OPEN_STREAM, runs_code, sample_seed

if TYPE_CHECKING:
    from transformers import Trainer

    from nearpeak.integrations._regroup import Report

__all__ = ["Stream"]


class Stream:
    """The samples of one training: their random numbers, their order, and where in them it stands."""

    def __init__(self, trainer: Trainer, report: Report, saved: dict[str, Any] | None, step: int) -> None:
        """`saved` is what `state` returned before the stop, `step` the optimizer step to go on from."""
        self._trainer, self._report = trainer, report
        self._saved, self._step = saved, step
        self._sampler: Any = None
        self._batches: int | None = None
        args = trainer.args
        self.seed: int = args.seed if args.data_seed is None else args.data_seed

    @property
    def updates_per_epoch(self) -> int | None:
        """None where the data does not know its length, or nothing was loaded yet."""
        if not self._batches:
            return None
        return -(-self._batches // self._trainer.args.gradient_accumulation_steps)

    def adopt(self, loader: Any) -> Any:
        """Change a training loader in place, and return it."""
        base = getattr(loader, "base_dataloader", loader)
        obstacle = _obstacle(base)
        if obstacle is not None:
            self._report.say("data_random_numbers=own", f"left as they are: {obstacle}", level=logging.WARNING)
            return loader
        self._batches = len(loader) if hasattr(base.dataset, "__len__") else None
        epoch = self._step // self.updates_per_epoch if self.updates_per_epoch else 0
        self._seed_loader(loader, base, epoch)
        self._keep_order(base, epoch)
        return loader

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint of this rank."""
        if isinstance(self._sampler, KeptOrder):
            return {"order": self._sampler.state()}
        return {"sampler_seed": getattr(self._sampler, "initial_seed", None)}

    # -- random numbers ------------------------------------------------------------------------------------------------

    def _seed_loader(self, loader: Any, base: Any, epoch: int) -> None:
        clock = Clock(epoch)
        collate_draws = may_draw(base.collate_fn)
        if runs_code(base.dataset) or collate_draws:
            # torch forbids changing it as its samplers were made for it; this one has the same samples.
            vars(base)["dataset"] = SeededData(base.dataset, self.seed, clock)
            base.collate_fn = SeededCollate(base.collate_fn, self.seed, clock) if collate_draws else base.collate_fn
            because = "each is fetched and collated under a seed of (data seed, epoch, index), which no restart changes"
            self._report.say("data_random_numbers=seeded", because, seed=self.seed)
        if self._step and base.persistent_workers and base.generator is None:
            # Workers that live on were given their seed in the first epoch: those of a resumed training must not draw
            # theirs, in a later one, from the generator of the model's dropout.
            base.generator = torch.Generator().manual_seed(sample_seed(self.seed, epoch, 0, OPEN_STREAM) >> 1)
        _tell_epoch(loader, clock)

    # -- order ---------------------------------------------------------------------------------------------------------

    def _keep_order(self, base: Any, epoch: int) -> None:
        self._sampler, obstacle = keep_order(base)
        if obstacle is not None:
            self._report.say("data_order=own", f"an epoch left in the middle may go on otherwise: {obstacle}")
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)  # accelerate does not reach it through what skips and shards at once
        if self._saved is not None:
            self._restore_order(self._saved)

    def _restore_order(self, saved: dict[str, Any]) -> None:
        sampler, seed = self._sampler, saved.get("sampler_seed")
        if isinstance(sampler, KeptOrder):
            order = saved.get("order")
            if order is None or not sampler.restore(order, inside=self._is_inside_epoch()):
                because = "the sampler is not the one, or holds other generators, than when it was saved"
                self._report.say("data_order=new", because, level=logging.WARNING)
        elif seed is not None and getattr(sampler, "initial_seed", seed) != seed:
            because = f"the checkpoint's order comes from seed {seed}, this script's from {sampler.initial_seed}"
            self._report.say("data_order=checkpoint", because)
            sampler.initial_seed = seed

    def _is_inside_epoch(self) -> bool:
        updates = self.updates_per_epoch
        return bool(updates and self._step % updates) and not self._trainer.args.ignore_data_skip


def _obstacle(base: Any) -> str | None:
    if not isinstance(base, torch.utils.data.DataLoader):
        return f"the training data is read by {type(base).__name__}, not by a torch DataLoader"
    if isinstance(base.dataset, torch.utils.data.IterableDataset):
        return (
            f"{type(base.dataset).__name__} only iterates, so a sample has no index to seed it by; it is read again "
            "up to the position, which is exact only if it draws no random numbers"
        )
    return None


def _tell_epoch(loader: Any, clock: Clock) -> None:
    """The Trainer calls `set_epoch` before each epoch; what skips batches in the first one was given it already."""
    own, alive = getattr(type(loader), "set_epoch", None), weakref.ref(loader)

    def set_epoch(epoch: int) -> None:
        clock.epoch = epoch
        # Not by a method bound to the loader: it would keep itself alive, and workers that the garbage collector ends
        # take 5 s each.
        if own is not None:
            own(alive(), epoch)

    loader.set_epoch = set_epoch
