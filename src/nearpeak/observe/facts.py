"""How a process that trains is set up, as far as it can be seen from inside. Asks; changes nothing."""

from __future__ import annotations

import os
import platform
from collections import Counter
from typing import Any

from nearpeak.recording.process_facts import ProcessFacts

__all__ = ["FRAMEWORKS", "VARIABLES", "read_facts", "read_loader_facts"]

VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "MALLOC_CONF",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TOKENIZERS_PARALLELISM",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_BLOCKING_WAIT",
)
"""Environment variables that matter to speed."""
FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate")
WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
    "DeepSpeedEngine",
    "_FabricModule",
)
INNER = ("module", "_orig_mod", "_forward_module")
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers that torch has fused kernels for."""
OPTIONS = ("lr", "fused", "foreach", "capturable", "differentiable", "weight_decay", "momentum", "betas", "amsgrad")


def read_facts(torch: Any, optimizer: Any, models: list[Any], loader_facts: dict[str, Any]) -> ProcessFacts:
    """Of this process, now that it has made an update."""
    facts = ProcessFacts()
    _read_process(facts, torch)
    if optimizer is not None:
        _read_optimizer(facts, torch, optimizer)
    if models:
        _read_model(facts, torch, models)
    _read_device(facts, torch, optimizer)
    for name, value in loader_facts.items():
        setattr(facts, name, value)
    return facts


def _read_process(facts: ProcessFacts, torch: Any) -> None:
    facts.framework, facts.framework_version = "pytorch", torch.__version__
    facts.torch_version = torch.__version__
    facts.python_version = platform.python_version()
    facts.cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts.threads = torch.get_num_threads()
    facts.environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    facts.anomaly_detection = torch.is_anomaly_enabled()


def _read_optimizer(facts: ProcessFacts, torch: Any, optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    facts.optimizer = type(optimizer).__name__
    facts.optimizer_options = {name: _plain(group[name]) for name in OPTIONS if name in group}
    parameters = [each for one in optimizer.param_groups for each in one["params"]]
    native = type(optimizer).__module__.startswith("torch.optim")
    kinds = {each.device.type for each in parameters[:1]}
    facts.can_fuse = native and type(optimizer).__name__ in FUSED and kinds <= {"cpu", "cuda", "mps", "xpu"}


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _read_model(facts: ProcessFacts, torch: Any, models: list[Any]) -> None:
    wrappers, model = _unwrap(max(models, key=_size))
    facts.wrappers = wrappers
    facts.model = type(model).__name__
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    facts.parameters = sum(each.numel() for each in parameters)
    facts.trainable_parameters = sum(each.numel() for each in trained)
    facts.trainable_tensors = len(trained)
    sizes: Counter[str] = Counter()
    for each in trained:
        sizes[str(each.dtype).removeprefix("torch.")] += each.numel()
    facts.parameter_dtype = sizes.most_common(1)[0][0] if sizes else None
    for each in models:
        if hasattr(each, "find_unused_parameters"):
            facts.find_unused_parameters = bool(each.find_unused_parameters)


def _size(model: Any) -> int:
    return sum(each.numel() for each in model.parameters())


def _unwrap(model: Any) -> tuple[list[str], Any]:
    wrappers = []
    while type(model).__name__ in WRAPPERS:
        wrappers.append(type(model).__name__)
        inner = next((getattr(model, name) for name in INNER if hasattr(model, name)), None)
        if inner is None:
            break
        model = inner
    return wrappers, model


def _read_device(facts: ProcessFacts, torch: Any, optimizer: Any) -> None:
    parameters = [] if optimizer is None else [each for one in optimizer.param_groups for each in one["params"]]
    if not parameters:
        return
    device = parameters[0].device
    facts.device = str(device)
    if device.type == "cpu":
        facts.bf16_is_fast = _cpu_has_bf16()
    if device.type != "cuda":
        return
    properties = torch.cuda.get_device_properties(device)
    facts.device_name = properties.name
    facts.compute_capability = f"{properties.major}.{properties.minor}"
    facts.device_index = _driver_index(device.index or 0)
    facts.bf16_is_fast = properties.major >= 8
    facts.tf32 = bool(torch.backends.cuda.matmul.allow_tf32)


def _cpu_has_bf16() -> bool | None:
    """Units of its own, and not only conversions."""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read()
    except OSError:
        return None
    return any(f" {flag}" in text for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def _driver_index(index: int) -> int | None:
    """CUDA numbers what CUDA_VISIBLE_DEVICES shows; the driver numbers all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return index
    entries = visible.split(",")
    return int(entries[index]) if index < len(entries) and entries[index].strip().isdigit() else None


def read_loader_facts(loader: Any) -> dict[str, Any]:
    """By the names of `ProcessFacts`."""
    sampler = getattr(loader, "batch_sampler", None)
    return {
        "loader_workers": loader.num_workers,
        "loader_batch_size": loader.batch_size or getattr(sampler, "batch_size", None),
        "loader_prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "dataset": type(loader.dataset).__name__,
        "dataset_samples": _length(loader.dataset),
        "batches_per_epoch": _length(loader),
    }


def _length(sized: Any) -> int | None:
    """None of what has no length, or says so when asked."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None
