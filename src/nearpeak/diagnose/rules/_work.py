"""How large the operations of a run are: what narrower formats, more threads and larger batches can speed up."""

from __future__ import annotations

from nearpeak.diagnose.run_facts import RunFacts

__all__ = [
    "SMALL_OPERATION_MS",
    "compiling_share",
    "has_large_products",
    "is_mostly_start_up",
    "operation_ms",
    "passes_share",
]

OPERATIONS_PER_TENSOR = 4
"""A weight takes part in a product forward and two backward; its activation and the like make up for the fourth."""
STARVED_SHARE = 0.5
"""From this share of phase boundaries at which the device had nothing left to do, it waits for its host throughout."""
FEWEST_ROWS = 128
"""A core casts a weight in about half a nanosecond and multiplies it with a row in a hundredth: below some hundred rows
casting takes what 16-bit units save."""
SMALL_OPERATION_MS = 0.05
"""Python and the dispatcher take 5 to 20 µs for an operation and its gradient; below 50 µs they are a large part, and
splitting it among threads takes longer than it saves."""


def operation_ms(run: RunFacts) -> float | None:
    """Mean time of one operation in the passes, by the number of trained tensors."""
    tensors = run.process.trainable_tensors
    passes_ms = run.phase_ms.get("forward", 0.0) + run.phase_ms.get("backward", 0.0)
    passes_ms -= run.per_step.get("compile_ms", 0.0)
    if not tensors or passes_ms <= 0:
        return None
    return passes_ms / (max(1.0, run.micro_batches_per_step or 1.0) * tensors * OPERATIONS_PER_TENSOR)


def passes_share(run: RunFacts) -> float:
    """Forward and backward in the step, 0 to 1; on the device's clock where it was read."""
    passes_ms = sum(
        run.per_step.get(f"device_{name}_ms", run.phase_ms.get(name, 0.0)) for name in ("forward", "backward")
    )
    return min(1.0, passes_ms / run.mean_step_ms) if run.mean_step_ms > 0 else 0.0


def compiling_share(run: RunFacts) -> float:
    """Of the step; the compiler works inside the forward pass."""
    return run.per_step.get("compile_ms", 0.0) / run.mean_step_ms


def rows(run: RunFacts) -> float | None:
    """Of the matrices in one micro-batch of a rank: its tokens, or its samples."""
    whole = run.per_step.get("padded_tokens") or run.per_step.get("samples")
    return None if whole is None else whole / max(1.0, run.micro_batches_per_step or 1.0)


def has_large_products(run: RunFacts) -> bool:
    """Operations that take long enough for the arithmetic itself to matter, on enough rows that casting the weights
    does not cost what it saves. A host that runs ahead is held back by its device's pace: its clock tells both."""
    starved = run.per_step.get("starved_share")
    if not run.on_host and starved is not None:
        return starved < STARVED_SHARE
    taken_ms, many = operation_ms(run), rows(run)
    enough = not run.on_host or (many is not None and many >= FEWEST_ROWS)
    return enough and taken_ms is not None and taken_ms >= 4 * SMALL_OPERATION_MS


def is_mostly_start_up(run: RunFacts) -> bool:
    """Operations take about as long as Python and the dispatcher need to start them."""
    starved = run.per_step.get("starved_share")
    if not run.on_host and starved is not None:
        return starved >= STARVED_SHARE
    taken_ms = operation_ms(run)
    return taken_ms is not None and taken_ms < SMALL_OPERATION_MS
