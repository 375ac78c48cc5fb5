"""How a process that trained was set up: what the probe could see of it. Standard library only, as the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["ProcessFacts"]


@dataclass(slots=True, kw_only=True)
class ProcessFacts:
    """What is unknown is None. Filled in while the training begins, then written into its `ProcessRecord`."""

    framework: str | None = None
    """Who runs the loop: `transformers`, `lightning`, `accelerate`, `nearpeak` or `pytorch` for the user's own."""
    framework_version: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    """Settings by the framework's own names: ``{"gradient_accumulation_steps": 4}``."""
    torch_version: str | None = None
    python_version: str | None = None

    device: str | None = None
    """`cuda:0`, `cpu`, …"""
    device_name: str | None = None
    compute_capability: str | None = None
    device_index: int | None = None
    """Of its readings: the number that the driver gives it."""
    cores: int | None = None
    """That this process may use: affinity and control groups counted in."""
    threads: int | None = None
    """Of torch's pool inside operations."""
    environment: dict[str, str] = field(default_factory=dict)
    """Of the variables that matter those that are set: OMP_NUM_THREADS, TOKENIZERS_PARALLELISM, …"""

    model: str | None = None
    wrappers: list[str] = field(default_factory=list)
    """Outermost first: DistributedDataParallel, DataParallel, OptimizedModule, …"""
    parameters: int | None = None
    trainable_parameters: int | None = None
    trainable_tensors: int | None = None
    parameter_dtype: str | None = None
    """`float32`, …: of most trainable parameters."""
    autocast_dtype: str | None = None
    """None where autocast is off or was not seen."""
    bf16_is_fast: bool | None = None
    """The device has units for it."""
    tf32: bool | None = None
    grad_scaler: bool | None = None
    anomaly_detection: bool | None = None
    find_unused_parameters: bool | None = None

    optimizer: str | None = None
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    """fused, foreach, and what else steers how the update runs."""
    can_fuse: bool | None = None
    """This torch has a fused kernel for this optimizer on this device."""

    loader_workers: int | None = None
    loader_batch_size: int | None = None
    loader_prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    dataset: str | None = None
    dataset_samples: int | None = None
    batches_per_epoch: int | None = None

    accumulation: int | None = None
    """Micro-batches per update that the framework was asked for."""
    expected_steps: int | None = None
    """Updates that the framework says it will make."""
    epochs: float | None = None

    def to_json(self) -> str:
        """Values that JSON has no form for are given as text."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ProcessFacts:
        """Facts of another version may lack some or have more."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})
