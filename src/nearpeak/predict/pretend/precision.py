"""What a request's precision means for torch."""

from __future__ import annotations

import torch

from nearpeak.predict.request import CaptureRequest

__all__ = ["DTYPES", "weights_dtype"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def weights_dtype(request: CaptureRequest) -> torch.dtype | None:
    """Of weights, and of inputs that are no numbers of tokens; None: as the model has them."""
    precision, _, weights = request.precision.partition("-")
    return DTYPES[precision] if weights else None
