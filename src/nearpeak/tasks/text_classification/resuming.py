"""The state of a training between its start and its end: kept beside the output folder, gone when the model is done."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.tasks.text_classification.config import OutputConfig

__all__ = ["Resuming", "StateFolder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """What the command line says about a training that was stopped before."""

    restart: bool = False
    """Forget it and begin anew."""
    allow_new_global_batch: bool = False
    """Go on at the next sample though the global batch is another than before."""


class StateFolder:
    """Where one training keeps its state; does nothing where `output.resume` is off."""

    def __init__(self, output: OutputConfig, resuming: Resuming) -> None:
        folder = Path(output.folder).absolute()
        self.path = folder.with_name(f"{folder.name}.state")
        self._on, self._resuming = output.resume, resuming

    @property
    def waits(self) -> bool:
        """Whether a training was stopped here that this one goes on with."""
        return self._on and not self._resuming.restart and any(self.path.glob("step-*"))

    def checkpoints(self, extra_state: Mapping[str, Any], *, is_first_rank: bool) -> Any:
        """For the run; None where no state is kept."""
        if not self._on:
            return None
        if self._resuming.restart and is_first_rank:
            shutil.rmtree(self.path, ignore_errors=True)
        from nearpeak.train.state import Checkpoints

        return Checkpoints(
            folder=self.path,
            resume=not self._resuming.restart,
            extra_state=extra_state,
            allow_new_global_batch=self._resuming.allow_new_global_batch,
            at_end=False,  # the model itself is what stays
            notices="machine",  # Ctrl-C and SIGTERM also leave a model: `Interrupts` handles them
        )

    def save(self, run: Any) -> None:
        """Before a stop that was asked for."""
        if self._on:
            run.save()

    def remove(self, ranks: Any) -> None:
        """The training is done: nothing is left to go on with."""
        if self._on and ranks.is_first:
            shutil.rmtree(self.path, ignore_errors=True)
