"""Remedies in the terms of whoever runs the loop: the argument and its value."""

from __future__ import annotations

from typing import Any

from nearpeak.diagnose.run_facts import RunFacts

__all__ = ["loader", "trainer_argument"]

IN_TRANSFORMERS = {
    "num_workers": "dataloader_num_workers",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "prefetch_factor": "dataloader_prefetch_factor",
}


def loader(run: RunFacts | None, **values: Any) -> str:
    """``DataLoader(num_workers=4)``, or what stands for it in the framework that makes the loader."""
    framework = run.process.framework if run else None
    if framework == "transformers":
        return _call("TrainingArguments", {IN_TRANSFORMERS.get(name, name): value for name, value in values.items()})
    return _call("DataLoader", values)


def trainer_argument(
    run: RunFacts | None, *, transformers: str, lightning: str | None = None, accelerate: str | None = None, plain: str
) -> str:
    """The form that fits the framework; `plain` where there is none of its own."""
    framework = (run.process.framework if run else None) or "pytorch"
    forms = {"transformers": transformers, "lightning": lightning, "accelerate": accelerate}
    return forms.get(framework) or plain


def _call(name: str, values: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
