"""A drop-in for transformers' Trainer: one import line, the same training, less time.

    from nearpeak.integrations.huggingface import Trainer

Same arguments, logs, `max_steps`, callbacks, evaluate and predict. Only the batches inside an optimizer step and their
execution differ: the window of accumulated batches is regrouped by length, or packed without padding. Before the first
window the gradient is compared with the script's own way; if it is not the same up to rounding, that way is kept. What
was chosen, and why, is logged under "nearpeak" and stands in `trainer.nearpeak.reasons`.

Checkpoints are published whole or not at all, `resume_from_checkpoint=True` takes the newest one that verifies, and a
resumed training goes on bit for bit.
"""

from __future__ import annotations

import functools
from typing import Any

from nearpeak.errors import MissingExtraError, UnsupportedError

__all__ = ["SUPPORTED", "Trainer", "check_version"]

SUPPORTED = ((5, 0), (6, 0))
"""transformers from the first, before the second: their training loop is the one we know (5.0.0, 5.10, 5.23 tried)."""


def check_version(version: str) -> None:
    """Refuse versions of transformers whose training loop we have not read."""
    parts = tuple(int(part) for part in version.split(".")[:2])
    if not SUPPORTED[0] <= parts < SUPPORTED[1]:
        lowest, highest = (".".join(map(str, bound)) for bound in SUPPORTED)
        raise UnsupportedError(
            f"transformers {version}: nearpeak's Trainer knows {lowest} and later, before {highest}. "
            f"Install one of them (pip install 'transformers>={lowest},<{highest}') or use transformers.Trainer."
        )


try:
    import transformers
except ModuleNotFoundError as error:
    raise MissingExtraError("transformers is not installed. Get it with: pip install 'nearpeak[hf]'") from error

check_version(transformers.__version__)

from nearpeak.integrations._regroup import Report, regrouped, regrouping_of  # noqa: E402  what was just checked
from nearpeak.integrations._resume import Session, find_checkpoint  # noqa: E402
from nearpeak.train.untraced import random_state_kept  # noqa: E402


class Trainer(transformers.Trainer):
    """transformers.Trainer whose windows are regrouped while it trains, and whose checkpoints are always whole."""

    nearpeak: Report | None = None
    """What was chosen and why; None before training."""
    _session: Session | None = None

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers does; see the module."""
        checkpoint = find_checkpoint(self, resume_from_checkpoint)
        with regrouped(self) as self.nearpeak:
            session = Session(self, regrouping_of(self), self.nearpeak, checkpoint)
            with session.attached():
                self._session = session
                try:
                    return super().train(session.path, *args, **kwargs)
                finally:
                    self._session = None

    # Called by transformers, at places where it leaves a trace that a resumed training would not have.

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        save = functools.partial(super()._save_checkpoint, model, trial)
        if self._session is None:
            save()
        else:
            self._session.save(trial, save)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if self._session is not None:
            self._session.restore_loss()

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with random_state_kept(self.args.device):
            return super()._evaluate(*args, **kwargs)
