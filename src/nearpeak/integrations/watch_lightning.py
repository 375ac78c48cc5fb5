"""For scripts with Lightning: ``Trainer(callbacks=[WatchCallback("nearpeak-runs/mine")])``."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nearpeak.observe.frameworks import lightning_begins
from nearpeak.observe.watching import watching

__all__ = ["WatchCallback"]

# One library under two names; a script's Trainer takes callbacks of its own name only.
_HOME = "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
Callback: Any = import_module(_HOME).Callback


class WatchCallback(Callback):
    """Records the fit; does nothing further where `nearpeak run` records it already."""

    def __init__(self, folder: str | Path | None = None, *, force: bool = False) -> None:
        self._folder, self._force = folder, force
        self._stack = ExitStack()

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """From here on."""
        self._stack.enter_context(watching(self._folder, force=self._force))
        lightning_begins(trainer)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Until here."""
        self._stack.close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Or here."""
        self._stack.__exit__(type(exception), exception, exception.__traceback__)
