"""Run by torchrun: every head and task under two ranks, plain and regrouped; rank 0 writes what differs."""

from __future__ import annotations

import gc
import json
import sys
import warnings
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
from trainer_tools import HEADS, TASKS, losses, make_model, make_rows, sample_gradients, train, weights

from nearpeak.integrations.huggingface import Trainer

SAMPLES = 22
"""Eight batches of 3, the last of 1: two windows of 2 on each rank, and one rank's last batch is short."""


def compare(head: str, task: str, folder: Path) -> dict[str, object]:
    """Train twice; no learning, so that both see the same model."""
    rows, model = make_rows(SAMPLES, task), make_model(head, task)
    uneven = {"accelerator_config": {"even_batches": False}}
    plain_trainer, plain = train(transformers.Trainer, model, rows, folder, **uneven)
    trainer, ours = train(Trainer, model, rows, folder, **uneven)
    pairs = list(zip(plain.gradients, ours.gradients, strict=True))
    gc.freeze()  # each training collects garbage at its start
    if torch.distributed.get_rank():
        return {}
    samples = sample_gradients(model, rows)
    return {
        "head": head,
        "task": task,
        "windows": trainer.nearpeak.windows,
        "regrouped": trainer.nearpeak.regrouped,
        "reasons": [str(reason) for reason in trainer.nearpeak.reasons],
        "gradient": max(float((a - b).norm() / a.norm()) for a, b in pairs),
        "weight": max(float((weights(a, samples) - weights(b, samples)).abs().max()) for a, b in pairs),
        "loss": max(abs(a - b) for a, b in zip(losses(plain_trainer), losses(trainer), strict=True)),
    }


def main() -> None:
    """All of them in one process group: starting one costs more than training."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    results = [compare(head, task, folder) for head in HEADS for task in TASKS]
    if torch.distributed.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
