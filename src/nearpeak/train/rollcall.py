"""Ranks agree on stopping, and find out whether all of them are still there, without waiting for ever.

torchrun sends SIGTERM to every worker when one of them died. To the others that looks like a preemption, but a save
that all ranks take part in would then wait for the dead one until the backend gives up, 10 to 30 minutes later. So
before such a save each rank calls `everyone_is_here`, which only needs the store that the ranks met at.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nearpeak.errors import NearpeakError
from nearpeak.train.parallel import Ranks

__all__ = ["LostPeerError", "agree_to_stop", "everyone_is_here", "is_stop", "stop_flag"]

GO, NO = b"go", b"no"
MARGIN = 0.2
"""Share of the timeout kept for telling the others that somebody is missing."""

_rounds = itertools.count()
"""Roll calls of this process; the same on every rank, since all of them call together."""


class LostPeerError(NearpeakError):
    """A rank did not answer in time."""


def stop_flag(pending: object | None) -> float:
    """This rank's contribution to a sum (or maximum) over ranks that travels with other statistics."""
    return 0.0 if pending is None or pending is False else 1.0


def is_stop(reduced: float) -> bool:
    """Whether any rank's `stop_flag` was up, from the sum or maximum of them."""
    return reduced > 0.5


def agree_to_stop(pending: bool, ranks: Ranks, timeout_s: float = 60.0) -> bool:
    """Whether any rank wants to stop; every rank gets the same answer. All of them must call it at the same step.

    LostPeerError, where the others do not answer within `timeout_s`.
    """
    if ranks.count == 1:
        return pending
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    flag = torch.tensor([stop_flag(pending)], device=device)
    work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    try:
        _finish(work, timeout_s)
    except RuntimeError as error:
        raise LostPeerError(f"Rank {ranks.rank}: agreeing on whether to stop failed: {error}") from error
    return is_stop(float(flag))


def everyone_is_here(ranks: Ranks, timeout_s: float) -> bool:
    """Whether all ranks call this within `timeout_s`; all that do get the same answer, and none waits longer.

    Call it on every rank before a collective save that follows a notice, and again before leaving with an exit code:
    torchrun takes the first rank that leaves for a failure and ends the others. After False there is no point in
    calling it again: leave without a collective.
    """
    if ranks.count == 1:
        return True
    answers: list[bool] = []
    arguments = (ranks.count, f"nearpeak/rollcall/{next(_rounds)}", timeout_s * (1 - MARGIN), answers)
    # In a thread, because a store whose machine vanished can hold up a request for longer than any timeout of it.
    caller = threading.Thread(target=_call, args=arguments, name="nearpeak-rollcall", daemon=True)
    caller.start()
    caller.join(timeout_s)
    return answers == [True]


def _call(count: int, name: str, wait_s: float, answers: list[bool]) -> None:
    try:
        answers.append(_is_complete(_own_connection(), count, name, wait_s))
    except (RuntimeError, OSError):  # the store is gone, and with it the rank or agent that kept it
        answers.append(False)


def _is_complete(store: Any, count: int, name: str, wait_s: float) -> bool:
    """The first to know decides, for all: the last one to come, or the first one to lose patience."""
    verdict = f"{name}/verdict"
    mine = GO if store.add(f"{name}/here", 1) >= count else NO
    if mine == NO:
        with contextlib.suppress(dist.DistStoreError):  # nobody decided in time: then it is no
            store.wait([verdict], timedelta(seconds=wait_s))
    return store.compare_set(verdict, "", mine.decode()) == GO


def _own_connection() -> Any:
    """The default group's store; through a connection of its own where possible, as waiting holds one up."""
    store: Any = dist.distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store


def _finish(work: dist.Work, timeout_s: float) -> None:
    """Wait, but not for ever: NCCL's own `wait(timeout)` only queues on the device."""
    deadline, pause_s = time.monotonic() + timeout_s, 5e-5
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not every rank answered within {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.01)
    work.wait()
