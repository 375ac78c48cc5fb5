"""For scripts with transformers' Trainer: ``Trainer(…, callbacks=[WatchCallback("nearpeak-runs/mine")])``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nearpeak.observe.frameworks import trainer_begins
from nearpeak.observe.watching import watching

__all__ = ["WatchCallback"]


class WatchCallback(TrainerCallback):
    """Records the training; does nothing further where `nearpeak run` records it already."""

    def __init__(self, folder: str | Path | None = None, *, force: bool = False) -> None:
        self._folder, self._force = folder, force
        self._stack = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here on."""
        self._stack.enter_context(watching(self._folder, force=self._force))
        trainer_begins(args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A training that fails before does not get here: its recording has no ending."""
        self._stack.close()
