"""fp32 on hardware that has faster units for narrower formats."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.rules._settings import trainer_argument
from nearpeak.diagnose.rules._work import compiling_share, has_large_products, passes_share
from nearpeak.diagnose.run_facts import RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.3
"""Of the step in forward and backward: below, it is not the arithmetic that takes the time."""
ON_DEVICE = Portions(0.15, 0.55, 0.93)
"""bf16 Tensor Cores have 8 to 16 times the rate of fp32 on Ampere and later; training steps published by vendors for
fp32 → bf16 shorten by a factor of 1.2 to 4, as memory traffic only halves; products alone by 12 (H200, measured)."""
FROM_TF32 = Portions(0.05, 0.3, 0.5)
"""tf32 already uses the Tensor Cores, at half the rate of bf16 and twice its traffic."""
ON_HOST = Portions(0.05, 0.35, 0.75)
"""AVX-512 BF16 multiplies twice as many values as fp32 a cycle, AMX sixteen times; casting takes a part back."""
WIDE = ("float32", None)


def find(facts: Facts) -> list[Finding]:
    """Parameters and arithmetic in fp32, units for bf16 at hand."""
    run = facts.run
    if run is None or not run.process.bf16_is_fast:
        return []
    process = run.process
    if process.parameter_dtype != "float32" or process.autocast_dtype not in WIDE:
        return []
    compute = passes_share(run) - compiling_share(run)
    if compute < SMALLEST_SHARE or not has_large_products(run):
        return []
    tf32 = bool(process.tf32)
    return [
        costs(
            "precision",
            f"{'tf32' if tf32 else 'fp32'} arithmetic on {process.device_name or 'a processor'} that has units for "
            f"bf16: {percent(compute)} of the step is forward and backward",
            facts,
            gain_of(min(MOST, compute), _portions(run)),
            remedy=_remedy(run),
            verify="Run again and compare losses: bf16 rounds, so they agree to about two digits, not bit for bit.",
            formula=_formula(run),
            parameter_dtype=process.parameter_dtype,
            autocast_dtype=process.autocast_dtype or "off",
            tf32=process.tf32,
            device=process.device_name or process.device,
            compute_share=compute,
            step_ms=run.mean_step_ms,
        )
    ]


def _portions(run: RunFacts) -> Portions:
    if run.on_host:
        return ON_HOST
    return FROM_TF32 if run.process.tf32 else ON_DEVICE


def _formula(run: RunFacts) -> str:
    part = _portions(run)
    return f"share of forward and backward × {part.low} to {part.high}, likely {part.likely}"


def _remedy(run: RunFacts) -> str:
    device = "cpu" if run.on_host else "cuda"
    change = trainer_argument(
        run,
        transformers="TrainingArguments(bf16=True)",
        lightning='Trainer(precision="bf16-mixed")',
        accelerate='Accelerator(mixed_precision="bf16")',
        plain=f'with torch.autocast("{device}", torch.bfloat16): around the forward pass and the loss',
    )
    tf32 = "" if run.on_host or run.process.tf32 else ' With fp32 kept: torch.set_float32_matmul_precision("high").'
    return f"{change}; weights and optimizer stay in fp32, no loss scaling is needed. It changes rounding.{tf32}"
