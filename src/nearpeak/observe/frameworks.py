"""What frameworks tell: who runs the loop, how it is set up, how many steps it will make; and their own phases."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

from nearpeak.observe.patches import Patches
from nearpeak.observe.phases import CHECKPOINT, EVALUATION, LOGGING
from nearpeak.recording.process_facts import ProcessFacts

__all__ = [
    "accelerate_imported",
    "lightning_begins",
    "lightning_evaluation_imported",
    "lightning_imported",
    "safetensors_imported",
    "trainer_begins",
    "transformers_imported",
]

TRAINER_ARGUMENTS = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "max_steps",
    "bf16",
    "fp16",
    "tf32",
    "optim",
    "gradient_checkpointing",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "group_by_length",
    "train_sampling_strategy",
    "eval_strategy",
    "eval_steps",
    "save_strategy",
    "save_steps",
    "logging_steps",
    "logging_nan_inf_filter",
    "torch_compile",
    "torch_empty_cache_steps",
    "ddp_find_unused_parameters",
    "average_tokens_across_devices",
    "full_determinism",
)
LIGHTNING_ARGUMENTS = (
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "limit_train_batches",
    "log_every_n_steps",
    "max_epochs",
    "max_steps",
    "num_devices",
    "precision",
    "val_check_interval",
)


def _probe() -> Any:
    from nearpeak.observe.probe import current

    return current()


def _after(patches: Patches, owner: Any, name: str, told: Any) -> None:
    """Call `told` with the arguments of a method, once it has returned."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        told(*args)
        return result

    patches.put(owner, name, call)


def _about(subject: Any, tell: Callable[[ProcessFacts, Any], None]) -> Callable[[ProcessFacts], None]:
    """Ask about it as long as it is there; it holds a model that must not outlive its training."""
    reference = weakref.ref(subject)

    def look(facts: ProcessFacts) -> None:
        alive = reference()
        if alive is not None:
            tell(facts, alive)

    return look


def transformers_imported(module: Any) -> None:
    """`module` is transformers.trainer."""
    probe = _probe()
    if probe is None:
        return
    trainer = module.Trainer
    probe.hooks.hook_event(trainer, "evaluate", EVALUATION, "evaluation")
    probe.hooks.hook_event(trainer, "predict", EVALUATION, "evaluation")
    probe.hooks.hook_event(trainer, "_save_checkpoint", CHECKPOINT, "checkpoint")
    probe.hooks.hook_span(trainer, "log", LOGGING)

    def begun(handler: Any, arguments: Any, state: Any, *rest: Any) -> None:
        trainer_begins(arguments, state)

    _after(probe.patches, module.CallbackHandler, "on_train_begin", probe.boundary.guard_anywhere(begun))


def trainer_begins(arguments: Any, state: Any) -> None:
    """transformers' Trainer begins to train, as its callbacks are told."""
    probe = _probe()
    if probe is not None:
        probe.frameworks.append(lambda facts: _tell_transformers(facts, arguments, state))


def _tell_transformers(facts: ProcessFacts, arguments: Any, state: Any) -> None:
    facts.framework = "transformers"
    facts.framework_version = _version("transformers")
    facts.arguments = _chosen(arguments, TRAINER_ARGUMENTS)
    facts.accumulation = arguments.gradient_accumulation_steps
    facts.expected_steps = state.max_steps or None
    facts.epochs = float(state.num_train_epochs) if state.num_train_epochs else None
    if facts.autocast_dtype is None and (arguments.bf16 or arguments.fp16):
        facts.autocast_dtype = "bfloat16" if arguments.bf16 else "float16"


def lightning_imported(module: Any) -> None:
    """`module` is lightning.pytorch.trainer.trainer, or what it was called before."""
    probe = _probe()
    if probe is None:
        return
    probe.hooks.hook_event(module.Trainer, "save_checkpoint", CHECKPOINT, "checkpoint")

    def made(trainer: Any, *rest: Any) -> None:
        lightning_begins(trainer)

    _after(probe.patches, module.Trainer, "__init__", probe.boundary.guard_anywhere(made))


def lightning_begins(trainer: Any) -> None:
    """A Lightning Trainer is there, or begins to train."""
    probe = _probe()
    if probe is not None:
        probe.frameworks.append(_about(trainer, _tell_lightning))


def lightning_evaluation_imported(module: Any) -> None:
    """`module` is lightning.pytorch.loops.evaluation_loop, or what it was called before."""
    probe = _probe()
    if probe is not None:
        probe.hooks.hook_event(module._EvaluationLoop, "run", EVALUATION, "evaluation")


def _tell_lightning(facts: ProcessFacts, trainer: Any) -> None:
    facts.framework = "lightning"
    facts.framework_version = _version("lightning") or _version("pytorch_lightning")
    facts.arguments = _chosen(trainer, LIGHTNING_ARGUMENTS)
    facts.accumulation = trainer.accumulate_grad_batches
    facts.epochs = float(trainer.max_epochs) if trainer.max_epochs and trainer.max_epochs > 0 else None
    steps = trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None
    batches = trainer.num_training_batches
    if steps is None and facts.epochs and batches and math.isfinite(batches):
        steps = math.ceil(batches / (facts.accumulation or 1)) * int(facts.epochs)
    facts.expected_steps = steps


def accelerate_imported(module: Any) -> None:
    """`module` is accelerate.accelerator."""
    probe = _probe()
    if probe is None:
        return
    probe.hooks.hook_event(module.Accelerator, "save_state", CHECKPOINT, "checkpoint")

    def made(accelerator: Any, *rest: Any) -> None:
        # Frameworks that use it tell more, and later.
        probe.frameworks.insert(0, _about(accelerator, _tell_accelerate))

    _after(probe.patches, module.Accelerator, "__init__", probe.boundary.guard_anywhere(made))


def _tell_accelerate(facts: ProcessFacts, accelerator: Any) -> None:
    facts.framework = "accelerate"
    facts.framework_version = _version("accelerate")
    facts.accumulation = accelerator.gradient_accumulation_steps
    facts.arguments = {
        "mixed_precision": str(accelerator.mixed_precision),
        "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
        "num_processes": accelerator.num_processes,
    }
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(str(accelerator.mixed_precision))
    facts.autocast_dtype = facts.autocast_dtype or precision


def safetensors_imported(module: Any) -> None:
    """`module` is safetensors.torch."""
    probe = _probe()
    if probe is not None:
        probe.hooks.hook_event(module, "save_file", CHECKPOINT, "checkpoint")


def _version(package: str) -> str | None:
    return getattr(sys.modules.get(package), "__version__", None)


def _chosen(settings: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Those that there are, as plain values."""
    values = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    plain = (bool, int, float, str, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}
