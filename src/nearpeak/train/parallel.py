"""Data parallelism: ranks share a window and add up their gradients, once per optimizer step.

Why not DistributedDataParallel: it averages over ranks, which weighs the samples of a short share too much; it needs a
backward pass on every rank, which a rank without samples has not; and it cannot carry the window's loss along.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from nearpeak.errors import UnsupportedError

__all__ = ["GradientReducer", "Ranks", "join_ranks"]

BUCKET_BYTES = 25 * 2**20
"""Big enough to use the link, small enough that the first leave while backward still runs (torch's own choice)."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the job."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join_ranks(device_type: str) -> Ranks:
    """Join the process group that torchrun (or the user) set up; alone if there is none."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))
    if int(os.environ.get("WORLD_SIZE", 1)) <= 1 or "MASTER_ADDR" not in os.environ:
        return Ranks()
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))


def same_start(model: torch.nn.Module, ranks: Ranks) -> None:
    """Every rank begins with the first rank's weights and buffers."""
    if ranks.count > 1:
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.detach(), 0)


def agree(value: object, ranks: Ranks) -> object:
    """The first rank's value, on every rank: measured choices differ between machines."""
    if ranks.count == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


@dataclass(slots=True)
class _Bucket:
    parameters: list[torch.nn.Parameter]
    flat: torch.Tensor
    """Gradients, then one flag per parameter: whether this rank has a gradient for it."""
    missing: set[int] = field(default_factory=set)
    work: dist.Work | None = None


class GradientReducer:
    """Adds gradients over ranks in buckets that leave while backward still runs; statistics travel in the last one."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], statistics: int, bucket_bytes: int = BUCKET_BYTES):
        # Gradients come in about the reverse order of the parameters, so buckets fill up in that order.
        trained = [p for p in reversed(list(parameters)) if p.requires_grad]
        self._buckets = _make_buckets(trained, bucket_bytes)
        reference = trained[0]
        self._statistics = torch.zeros(statistics, dtype=statistics_type(reference.device), device=reference.device)
        self._armed, self._next = False, 0
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_is_ready) for p in trained]

    def arm(self) -> None:
        """Call before the last backward of a window: from now on complete buckets leave at once."""
        for bucket in self._buckets:
            bucket.missing = {id(p) for p in bucket.parameters}
            bucket.work = None
        self._armed, self._next = True, 0

    def finish(self, statistics: torch.Tensor) -> torch.Tensor:
        """Send what has not left, wait, and leave the sums in `.grad`; returns the sums of the statistics."""
        if not self._armed:
            self.arm()
        self._armed = False
        while self._next < len(self._buckets):
            self._send_next()
        self._statistics.copy_(statistics)
        last = dist.all_reduce(self._statistics, async_op=True)
        for bucket in self._buckets:
            _receive(bucket)
        if last is not None:
            last.wait()
        return self._statistics.clone()

    def disarm(self) -> None:
        """Forget a window whose backward broke off before anything was sent."""
        self._armed, self._next = False, 0

    @property
    def has_sent(self) -> bool:
        """Whether part of this window's gradient is already on its way to the other ranks."""
        return self._armed and self._next > 0

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _gradient_is_ready(self, parameter: torch.Tensor) -> None:
        if not self._armed:
            return
        self._bucket_of[id(parameter)].missing.discard(id(parameter))
        # All ranks must send in the same order, so a full bucket waits for those before it.
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        _fill(bucket)
        bucket.work = dist.all_reduce(bucket.flat, async_op=True)


def statistics_type(device: torch.device) -> torch.dtype:
    """Sums over a window want more digits than fp32 has, where the device knows any."""
    return torch.float32 if device.type == "mps" else torch.float64


def _make_buckets(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
    buckets: list[list[torch.nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        own = parameter.numel() * parameter.element_size()
        if not buckets or size + own > bucket_bytes or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += own
    return [_Bucket(members, _flat_buffer(members)) for members in buckets]


def _flat_buffer(members: list[torch.nn.Parameter]) -> torch.Tensor:
    length = sum(p.numel() for p in members) + len(members)
    return torch.zeros(length, dtype=members[0].dtype, device=members[0].device)


def _fill(bucket: _Bucket) -> None:
    start = 0
    for position, parameter in enumerate(bucket.parameters):
        target = bucket.flat[start : start + parameter.numel()]
        start += parameter.numel()
        if parameter.grad is None:
            target.zero_()
        elif parameter.grad.is_sparse:
            raise UnsupportedError("Sparse gradients cannot be added over ranks: use Embedding(sparse=False).")
        else:
            target.copy_(parameter.grad.reshape(-1))
        bucket.flat[position - len(bucket.parameters)] = float(parameter.grad is not None)


def _receive(bucket: _Bucket) -> None:
    if bucket.work is not None:
        bucket.work.wait()
    start = 0
    for position, parameter in enumerate(bucket.parameters):
        total = bucket.flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        if parameter.grad is not None:
            parameter.grad.copy_(total)
        elif bool(bucket.flat[position - len(bucket.parameters)]):
            # This rank had no samples for it; without a gradient its optimizer would skip what the others update.
            # Reading the flag waits for the device, which only a rank without a gradient has to do.
            parameter.grad = total.clone()
