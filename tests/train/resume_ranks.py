"""Run alone or by torchrun: trains, stops as told, and writes what this rank trained on."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from jobs import text_job, texts

from nearpeak import Plan, Run
from nearpeak.plan import LoaderSettings
from nearpeak.train.preempt import Preempted
from nearpeak.train.state import Checkpoints


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop", type=int, default=10**9)
    parser.add_argument("--notice", type=int, default=10**9)
    parser.add_argument("--on-rank", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = [{**sample, "index": i} for i, sample in enumerate(texts(40))]
    trained: list[list[int]] = []

    def loss(model, batch):
        trained[-1] += batch.pop("index").tolist()
        return model(**batch).loss

    # Checked by the engine's own tests; here it would count as trained.
    plan = Plan(micro_batching="fixed", micro_batch=3, checkpoint_every=1, loader=LoaderSettings(workers=0))
    checkpoints = Checkpoints(folder=given.folder / "state", notices=["signals"], peer_timeout_s=20)
    run = Run(text_job(data=data, loss=loss, epochs=2), plan, checkpoints=checkpoints)
    steps: list[int] = []
    losses: list[float] = []
    code = 0
    trained.append([])
    try:
        for step in run:
            steps.append(step.index)
            losses.append(step.loss)
            trained.append([])
            if step.index + 1 == given.stop + 1:
                # Stopped in the middle of step `stop`: what it did is not saved, and is done again.
                steps.pop(), losses.pop()
                break
            if step.index == given.notice and run.rank == given.on_rank:
                os.kill(os.getpid(), signal.SIGUSR1)
    except Preempted as preempted:
        code = int(preempted.code)
    written = {"steps": steps, "samples": trained[: len(steps)], "losses": losses, "exit": code}
    (given.folder / f"rank-{run.rank}.json").write_text(json.dumps(written))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
