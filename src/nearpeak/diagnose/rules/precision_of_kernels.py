"""Matrix products of a trace that ran in fp32 beside the Tensor Cores, on a device that has them."""

from __future__ import annotations

import re

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import MOST, Portions, gain_of
from nearpeak.diagnose.rules._common import costs, percent
from nearpeak.diagnose.trace_facts import KernelFacts, TraceFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.10
"""Of the step in products that could use Tensor Cores: below, the rest of the step decides."""
FASTER = Portions(0.25, 0.6, 0.85)
"""A product on Tensor Cores takes an eighth to a half of its time in fp32; casts and memory take a part back."""
COMPUTE_BOUND = 0.8
FIRST_WITH_TENSOR_CORES, FIRST_WITH_BF16 = (7, 0), (8, 0)
WITHOUT = re.compile(r"GTX 16\d\d|\bMX[45]\d\d\b|\bT[4-9]00\b|\bT1[02]00\b", re.IGNORECASE)
"""Turing chips without Tensor Cores, though their compute capability is 7.5."""
AMD = re.compile(r"\bAMD\b|Instinct|Radeon|\bMI\d{2,3}|\bgfx\d", re.IGNORECASE)
AMD_WITH = re.compile(r"\bMI[1-9]\d\d\w?\b|\bgfx(908|90a|94\d|950|11\d\d|12\d\d)", re.IGNORECASE)
"""Those with matrix cores. ROCm gives AMD's devices numbers that look like compute capabilities, and are none."""
AMD_KERNELS = ("Cijk_", "miopen", "ck::")


def find(facts: Facts) -> list[Finding]:
    """Counted from the names of kernels; a wider format the user asked for on purpose looks the same."""
    trace, breakdown = facts.trace, facts.breakdown
    if facts.run is not None or trace is None or breakdown is None or not _has_tensor_cores(trace):
        return []
    fp32 = sum(each.time_ns for each in trace.kernels if _is_eligible(each, on_amd=_is_amd(trace)))
    products = trace.product_share or 0.0
    whole = sum(each.time_ns for each in trace.kernels)
    share = breakdown.share("compute") * (fp32 / whole if whole else 0.0)
    if share < SMALLEST_SHARE:
        return []
    finding = costs(
        "precision",
        f"{percent(share)} of the step is fp32 matrix work that its {_units(trace)} could do"
        + (" in 16 bits" if _is_amd(trace) else "")
        + (": no kernel uses them" if not trace.tensor_core_share else ""),
        facts,
        gain_of(min(MOST, share), FASTER),
        remedy=_remedy(trace),
        verify=f"Record again: the kernels' names must speak of {_units(trace)} ({_signs(trace)}); compare losses, "
        "which agree to about two digits, not bit for bit.",
        formula="eligible share of the step × 0.25 to 0.85, likely 0.6",
        eligible_share=share,
        compute_share=breakdown.share("compute"),
        matrix_share_of_compute=products,
        tensor_core_share_of_matrix_work=trace.tensor_core_share,
        device=trace.device_name,
        step_ms=facts.step_ms,
    )
    return [_ranked_below_waste(finding, breakdown.share("compute"))]


def _ranked_below_waste(finding: Finding, compute_share: float) -> Finding:
    """It changes rounding: where the device also idles, what costs nothing to mend comes first."""
    severity = "warning" if compute_share >= COMPUTE_BOUND else "info"
    return Finding(
        kind=finding.kind,
        title=finding.title,
        evidence=finding.evidence,
        severity=severity,
        remedy=finding.remedy,
        gain=finding.gain,
        verify=finding.verify,
    )


def _is_eligible(kernel: KernelFacts, *, on_amd: bool) -> bool:
    """AMD's matrix cores take fp32 as well, at a quarter of their pace for 16 bits or less."""
    is_product = kernel.family in ("matrix", "convolution", "attention")
    return is_product and kernel.number_format == "fp32" and (on_amd or not kernel.uses_tensor_cores)


def _is_amd(trace: TraceFacts) -> bool:
    if trace.device_name:
        return AMD.search(trace.device_name) is not None
    return any(kernel.name.startswith(AMD_KERNELS) for kernel in trace.kernels)


def _has_tensor_cores(trace: TraceFacts) -> bool:
    """False where it is not known."""
    capability, name = trace.compute_capability, trace.device_name or ""
    if _is_amd(trace):
        return AMD_WITH.search(name) is not None
    return capability is not None and capability >= FIRST_WITH_TENSOR_CORES and not WITHOUT.search(name)


def _units(trace: TraceFacts) -> str:
    return "matrix cores" if _is_amd(trace) else "Tensor Cores"


def _signs(trace: TraceFacts) -> str:
    return "Cijk_…_BBS_ or _HHS_ with _MI" if _is_amd(trace) else "h884, s1688, 16816, tensorop"


def _remedy(trace: TraceFacts) -> str:
    if _is_amd(trace):
        return "torch.autocast('cuda', dtype=torch.bfloat16) around the forward pass."
    if trace.compute_capability is not None and trace.compute_capability >= FIRST_WITH_BF16:
        return (
            "torch.autocast('cuda', dtype=torch.bfloat16) around the forward pass; or, with less rounding, tf32: "
            "torch.set_float32_matmul_precision('high')."
        )
    return (
        "torch.autocast('cuda', dtype=torch.float16) around the forward pass, with torch.amp.GradScaler: this device "
        "has Tensor Cores for fp16, not for bf16."
    )
