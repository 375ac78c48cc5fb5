"""Run by test_preempt on two ranks: they agree, call the roll, one comes late, one dies; each writes what it found."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nearpeak.train.parallel import Ranks, join_ranks
from nearpeak.train.preempt import (
    LostPeerError,
    Notices,
    agree_to_stop,
    everyone_is_here,
    exit_preempted,
    ignore_stop_signals,
)

TIMEOUT_S = 1.5
DIES = 1 if "TORCHELASTIC_RUN_ID" in os.environ else 0
"""Without torchrun, the rank that keeps the store."""


class Report:
    """What this rank found, and how long each finding took."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Any] = {"timeout_s": TIMEOUT_S, "seconds": {}}

    def take(self, name: str, action: Callable[[], Any]) -> None:
        start = time.monotonic()
        self.found[name] = action()
        self.found["seconds"][name] = time.monotonic() - start
        self.path.write_text(json.dumps(self.found))


def together(report: Report, ranks: Ranks) -> None:
    report.take("nobody pending", lambda: agree_to_stop(False, ranks))
    report.take("one pending", lambda: agree_to_stop(ranks.rank == 1, ranks))
    report.take("all here", lambda: everyone_is_here(ranks, TIMEOUT_S))
    report.take("all here again", lambda: everyone_is_here(ranks, TIMEOUT_S))
    dist.barrier()
    if ranks.rank == 1:
        time.sleep(TIMEOUT_S + 0.5)
    report.take("late", lambda: everyone_is_here(ranks, TIMEOUT_S))
    dist.barrier()


def agreeing(ranks: Ranks) -> str:
    try:
        return str(agree_to_stop(True, ranks, TIMEOUT_S))
    except LostPeerError as error:
        return type(error).__name__


def after_a_death(report: Report, ranks: Ranks, notices: Notices) -> None:
    deadline = time.monotonic() + 10
    while notices.pending is None and time.monotonic() < deadline and DIES == 1:
        time.sleep(0.01)
    report.found["pending"] = notices.pending and notices.pending.kind
    report.take("after a death", lambda: everyone_is_here(ranks, TIMEOUT_S))
    report.take("agreeing after a death", lambda: agreeing(ranks))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks("cpu")
    report = Report(folder / f"{ranks.rank}.json")
    loader = torch.utils.data.DataLoader(range(8), num_workers=1, worker_init_fn=lambda _: ignore_stop_signals())
    with Notices(["signals"]) as notices:
        together(report, ranks)
        samples = iter(loader)
        next(samples)
        dist.barrier()
        if ranks.rank == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        after_a_death(report, ranks, notices)
        time.sleep(0.2)  # a worker's death would be known by now
        report.take("loader goes on", lambda: len(list(samples)) == 7)
        from nearpeak.train.preempt import Notice

        exit_preempted(notices.pending or Notice("test", "death", "the other rank died"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
