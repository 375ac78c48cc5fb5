"""Tiny models, data and trainers, and a way to see what weight a step gave each sample."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.functional import pad
from transformers import TrainerCallback, TrainingArguments, set_seed

# Each training collects garbage at its start: what the imports left behind need not be looked through every time.
gc.collect()
gc.freeze()

PAD, WIDTH, VOCABULARY = 1, 24, 100
TASKS = ("single_label_classification", "multi_label_classification", "regression")
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", NO_DROPOUT),
    "distilbert": (
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "dropout": 0.0, "attention_dropout": 0.0,
         "seq_classif_dropout": 0.0},
    ),
    "roberta": ("Roberta", NO_DROPOUT),
    "xlm-roberta": ("XLMRoberta", NO_DROPOUT),
    "deberta-v2": (
        "DebertaV2",
        {**NO_DROPOUT, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
         "pooler_hidden_size": 32},
    ),
    "electra": ("Electra", {**NO_DROPOUT, "embedding_size": 16}),
    "albert": ("Albert", {**NO_DROPOUT, "classifier_dropout_prob": 0.0, "embedding_size": 16}),
    "modernbert": (
        "ModernBert",
        {"local_attention": 8, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "llama": ("Llama", {"num_key_value_heads": 1, "bos_token_id": 2, "eos_token_id": 3}),
}  # fmt: skip


def make_model(
    head: str,
    task: str = TASKS[0],
    dtype: torch.dtype = torch.float64,
    kind: str = "ForSequenceClassification",
    **config: Any,
) -> Any:
    """A random model without dropout; fp64 leaves no room for excuses."""
    set_seed(0)
    name, special = HEADS[head]
    labels = (
        {"num_labels": 1 if task == "regression" else 3, "problem_type": task}
        if kind == "ForSequenceClassification"
        else {}
    )
    settings = getattr(transformers, f"{name}Config")(**{**SMALL, **special, **labels, **config})
    return getattr(transformers, f"{name}{kind}")(settings).to(dtype)


def make_rows(count: int, task: str = TASKS[0], seed: int = 0) -> list[dict[str, Any]]:
    """Texts of 3 to 14 tokens with labels for the task."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(3, 15, (1,), generator=generator))
        tokens = torch.randint(5, VOCABULARY, (length,), generator=generator)
        rows.append({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": _label(task, tokens)})
    return rows


def _label(task: str, tokens: torch.Tensor) -> torch.Tensor:
    if task == "regression":
        return tokens.double().mean() / VOCABULARY
    if task == "multi_label_classification":
        return torch.stack([tokens[i] % 2 for i in range(3)]).double()
    if task == "causal":
        return tokens
    return tokens.sum() % 3


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad to the full width, as tutorials do."""
    fill = {"input_ids": PAD, "attention_mask": 0, "labels": -100}
    return {key: torch.stack([_widened(row[key], fill[key], len(row["input_ids"])) for row in rows]) for key in rows[0]}


def _widened(value: torch.Tensor, fill: int, length: int) -> torch.Tensor:
    return (
        pad(value, (0, WIDTH - length), value=fill)
        if value.dim() == 1 and len(value) == length and not value.is_floating_point()
        else value
    )


class Recorder(TrainerCallback):
    """The gradient of each optimizer step, and every callback in order."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []
        self.events: list[str] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.gradients.append(torch.cat([_gradient(p) for p in model.parameters()]))
        self.events.append("pre_optimizer_step")

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("step_begin")

    def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("substep_end")

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("optimizer_step")

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("step_end")

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("log")


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).detach().flatten().clone()


def train(
    trainer_class: Any,
    model: Any,
    rows: list[Any],
    folder: Path,
    *,
    collator: Any = collate,
    resume: str | None = None,
    extra: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Any, Recorder]:
    """Train with small defaults; returns the trainer and what happened."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2,
        "num_train_epochs": 1,
        "learning_rate": 0.0, "max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "no", "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "optim": "adamw_torch", "dataloader_pin_memory": False, "seed": 3,
    }  # fmt: skip
    recorder = Recorder()
    arguments = TrainingArguments(**{**defaults, **settings})
    trainer = trainer_class(
        model=model, args=arguments, train_dataset=rows, data_collator=collator, callbacks=[recorder], **(extra or {})
    )
    trainer.pop_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, recorder


def sample_gradients(model: Any, rows: list[dict[str, Any]]) -> torch.Tensor:
    """One column for each sample: the gradient of its own loss."""
    columns = []
    for row in rows:
        model.zero_grad()
        model(**collate([row])).loss.backward()
        columns.append(torch.cat([_gradient(p) for p in model.parameters()]))
    model.zero_grad()
    return torch.stack(columns, dim=1)


def weights(gradient: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """By which weights of the samples' own gradients a step's gradient is made."""
    return torch.linalg.lstsq(samples, gradient[:, None], driver="gelsd").solution.squeeze(1)


def losses(trainer: Any) -> list[float]:
    """What was logged."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
