"""Run as a process of its own: trains, and is killed while it writes its second checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_resume import choose_without_a_clock, make_trainer

from nearpeak.integrations.huggingface import Trainer


class Killed(Trainer):
    """The weights are written, the optimizer half."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.state.global_step == 6:
            (Path(output_dir) / "optimizer.pt").write_bytes(b"PK half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


def main() -> None:
    """Never returns."""
    torch.set_num_threads(1)
    choose_without_a_clock(setattr)
    trainer: Any = make_trainer(Path(sys.argv[1]), kind=Killed)
    trainer.train()


if __name__ == "__main__":
    main()
