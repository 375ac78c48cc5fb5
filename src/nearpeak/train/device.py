"""The device a run trains on: where batches go, and what running out of its memory looks like."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

__all__ = ["choose_device", "is_out_of_memory", "map_tensors", "move", "prefetch", "release_memory"]

T = TypeVar("T")


def choose_device(wanted: str | None, local_rank: int) -> torch.device:
    """The device asked for; else this rank's GPU, else the CPU."""
    if wanted is not None:
        return torch.device(wanted)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def move(value: Any, device: torch.device) -> Any:
    """A batch on a device, whatever it is built of; from pinned memory the copy does not wait."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same structure with every tensor replaced by the function's result."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(function, item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(function, getattr(value, f.name)) for f in fields(value)})
    return value


def prefetch(windows: Iterator[T], device: torch.device) -> Iterator[T]:
    """Windows on the device; on CUDA the next one is copied on a side stream while this one computes."""
    if device.type != "cuda":
        yield from (windows if device.type == "cpu" else (move(window, device) for window in windows))
        return
    stream, coming = torch.cuda.Stream(device), None
    for window in windows:
        with torch.cuda.stream(stream):
            arriving = move(window, device)
        if coming is not None:
            yield coming
        torch.cuda.current_stream(device).wait_stream(stream)
        _keep_until_used(arriving, torch.cuda.current_stream(device))
        coming = arriving
    if coming is not None:
        yield coming


def _keep_until_used(value: Any, stream: torch.cuda.Stream) -> None:
    """Memory allocated on the side stream must not be reused before the main stream has read it."""
    map_tensors(lambda tensor: tensor.record_stream(stream), value)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a micro-batch was too large."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # What torch's allocator for CPUs says, on Linux and elsewhere.
    said = ("can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)


def release_memory(device: torch.device) -> None:
    """Give back what a failed attempt holds."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
