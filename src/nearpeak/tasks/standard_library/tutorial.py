"""The training loop that tutorials teach, kept as they write it: what nearpeak is compared with.

Batches of 8, gradients of 4 of them added up, padding by the tokenizer's collator, fp32, AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nearpeak.tasks.standard_library.tokenizer import MOST_TOKENS

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

__all__ = ["ACCUMULATION", "BATCH", "GLOBAL_BATCH", "make_optimizer", "tutorial_steps", "warm_up_then_fall"]

BATCH = 8
ACCUMULATION = 4
GLOBAL_BATCH = BATCH * ACCUMULATION
LEARNING_RATE = 7e-4
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
WARM_UP_STEPS = 20


def make_optimizer(model: Module) -> Optimizer:
    """The optimizer of both sides."""
    from torch.optim import AdamW

    return AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def warm_up_then_fall(optimizer: Optimizer, optimizer_steps: int) -> Any:
    """The schedule of both sides. A fixed warm-up: the first steps are the same however many follow."""
    from torch.optim.lr_scheduler import LambdaLR

    falling = max(1, optimizer_steps - WARM_UP_STEPS)
    return LambdaLR(optimizer, lambda k: min((k + 1) / WARM_UP_STEPS, max(0.0, (optimizer_steps - k) / falling)))


def tutorial_steps(
    model: Any,
    samples: Sequence[dict[str, Any]],
    order: Sequence[int],
    tokenizer: Any,
    *,
    padding: str,
    optimizer_steps: int,
) -> Iterator[float]:
    """Train on the samples in the order given; the loss of each optimizer step, after it was made."""
    from torch.nn.utils import clip_grad_norm_
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding

    collate: Callable[..., Any] = DataCollatorWithPadding(tokenizer, padding=padding, max_length=MOST_TOKENS)
    loader = DataLoader(samples, batch_size=BATCH, sampler=order, collate_fn=collate)  # type: ignore[arg-type]
    optimizer = make_optimizer(model)
    scheduler = warm_up_then_fall(optimizer, optimizer_steps)
    model.train()
    step_loss = 0.0
    for number, batch in enumerate(loader, start=1):
        loss = model(**batch).loss / ACCUMULATION
        loss.backward()
        step_loss += loss.item()
        if number % ACCUMULATION == 0:
            clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            yield step_loss
            step_loss = 0.0
