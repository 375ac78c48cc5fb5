"""How large the operations of a run are: what narrower formats, more threads and larger batches can speed up."""

from __future__ import annotations

from nearpeak.diagnose.run_facts import RunFacts

__all__ = ["SMALL_OPERATION_MS", "has_large_products", "operation_ms"]

OPERATIONS_PER_TENSOR = 4
"""A weight takes part in a product forward and two backward; its activation and the like make up for the fourth."""
SMALL_OPERATION_MS = 0.05
"""Python and the dispatcher take 5 to 20 µs for an operation and its gradient; below 50 µs they are a large part, and
splitting it among threads takes longer than it saves."""


def operation_ms(run: RunFacts) -> float | None:
    """Mean time of one operation in the passes, by the number of trained tensors."""
    tensors = run.process.trainable_tensors
    passes_ms = run.phase_ms.get("forward", 0.0) + run.phase_ms.get("backward", 0.0)
    if not tensors or passes_ms <= 0:
        return None
    return passes_ms / (max(1.0, run.micro_batches_per_step or 1.0) * tensors * OPERATIONS_PER_TENSOR)


def has_large_products(run: RunFacts) -> bool:
    """Operations that take long enough for the arithmetic itself to matter. On a device the host's clock says nothing
    of them: there it takes the device's."""
    if run.on_host:
        taken_ms = operation_ms(run)
        return taken_ms is not None and taken_ms >= 4 * SMALL_OPERATION_MS
    return run.per_step.get("starved_share", 0.0) < 0.5
