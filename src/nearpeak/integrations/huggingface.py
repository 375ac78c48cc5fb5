"""A drop-in for transformers' Trainer: one import line, the same training, less time.

    from nearpeak.integrations.huggingface import Trainer

Same arguments, logs, `max_steps`, callbacks, evaluate and predict. Only the batches inside an optimizer step and their
execution differ: the window of accumulated batches is regrouped by length, or packed without padding. Before the first
window the gradient is compared with the script's own way; if it is not the same up to rounding, that way is kept. What
was chosen, and why, is logged under "nearpeak" and stands in `trainer.nearpeak.reasons`.
"""

from __future__ import annotations

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

from nearpeak.integrations._regroup import Report, regrouped  # noqa: E402  they import what was just checked


class Trainer(transformers.Trainer):
    """transformers.Trainer whose windows are regrouped while it trains."""

    nearpeak: Report | None = None
    """What was chosen and why; None before training."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers does; see the module."""
        with regrouped(self) as self.nearpeak:
            return super().train(*args, **kwargs)
