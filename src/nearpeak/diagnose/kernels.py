"""What kernels' names say of their work: matrix products or not, on Tensor Cores or not, in which number format.

Names are the only witness that every trace has. A name that says nothing counts as not eligible, never as a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["KernelTraits", "traits_of"]

# All patterns are looked for in names in lower case: that is several times as fast as to ignore case.
FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        ("set", r"^memset|fillbuffer"),
        ("optimizer", r"multi_tensor_apply|fused_?(adam|sgd|lamb|adagrad)|adam_kernel"),
        ("attention", r"flash|fmha|attention|attn_(fwd|bwd)|mha_(fwd|bwd)|sdpa|bwd_kernel_(dk_dv|dq)"),
        (
            "convolution",
            r"conv|fprop|dgrad|wgrad|winograd|cudnn::cnn|scudnn|implicit_gemm|miopen.*(gemm|asm)|igemm_|winograd_?fury",
        ),
        ("matrix", r"gemm|gemv|cutlass|xmma|nvjet|cijk_|mfma|dot_kernel|matmul|splitkreduce|wgmma|cublas"),
        ("normalisation", r"layer_?norm|batch_?norm|bn_(fw|bw)|rms_?norm|group_?norm|gammabeta|welford"),
        ("embedding", r"embedding|index_?select|gather|scatter|index_put"),
        ("reduction", r"reduce|softmax|cross_entropy|nll_loss|argmax|topk|sort|scan"),
        ("elementwise", r"elementwise|pointwise|activation|dropout|copy_kernel|cat(array)?batched|fill|triton_poi"),
    )
)
TENSOR_CORES = re.compile(
    r"tensorop|[hisde]?(884|1688|16816|16832|161616|16864)(gemm|cudnn|fprop|dgrad|wgrad|_)|[hi]mma|wmma|gmma|xmma_(gemm|"
    r"fprop|dgrad|wgrad|implicit)\w*(f16|bf16|tf32|i8|e4m3|e5m2)|nvjet|_mma_|tensor16x8|sm(80|86|89|90|100)_xmma|flash_|"
    r"fmha|cudnn_(ampere|hopper)|\bmfma|_mi\d+x\d+|xdl|gtcx|attn_(fwd|bwd)|sm90_|warpspecialized|cutlass3x|sm100"
)
PLAIN_UNITS = re.compile(r"simt|ffma|_sgemm_(?!.*tensorop)|volta_sgemm|scudnn(?!.*(884|1688|tensor))")
FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("8-bit", r"e4m3|e5m2|fp8|f8|i8816|i16832|int8|imma|cijk_[a-z]+_[a-z]+_(4x)?i8"),
        (
            "16-bit",
            r"bf16|bfloat16|f16(?!.*f32f32_f32)|fp16|half|h884|h1688|h16816|hgemm|16816|[_<]h[_,]|hmma|_[bh][bh]s_"
            r"|nvjet_[ht]|cijk_[a-z]+_[a-z]+_[bh]([bh]|[bh]h|ss)?_",
        ),
        ("tf32", r"tf32|xf32|cijk_[a-z]+_[a-z]+_s_mx_|s1688(gemm|cudnn|fprop|dgrad|wgrad)|tensor16x8x8"),
        ("fp64", r"dgemm|double|f64|fp64|d884|cijk_[a-z]+_[a-z]+_d"),
        ("fp32", r"sgemm|scudnn|float|f32|fp32|_sb_|cijk_[a-z]+_[a-z]+_s|ffma|simt"),
    )
)
PRODUCTS = frozenset({"matrix", "convolution", "attention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTraits:
    """Of one name."""

    family: str
    """One of those in `FAMILIES`, or `other`."""
    uses_tensor_cores: bool
    number_format: str
    """One of those in `FORMATS`, or `unknown`."""

    @property
    def is_product(self) -> bool:
        """Multiplies matrices: what Tensor Cores and their like are for."""
        return self.family in PRODUCTS


TELLING = 256
"""Characters of a name that tell; templates go on for thousands."""


@lru_cache(maxsize=8192)
def traits_of(name: str) -> KernelTraits:
    """What a kernel's name gives away."""
    name = name[:TELLING].lower()
    family = next((family for family, pattern in FAMILIES if pattern.search(name)), "other")
    product = family in PRODUCTS
    tensor = product and TENSOR_CORES.search(name) is not None and PLAIN_UNITS.search(name) is None
    found = next((its for its, pattern in FORMATS if pattern.search(name)), "unknown")
    return KernelTraits(family=family, uses_tensor_cores=tensor, number_format=found)
