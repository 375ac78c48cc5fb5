"""`CaptureRequest`: which training step to run on the pretend device. Plain values, so that it can go to a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from nearpeak.errors import SettingError

__all__ = ["OPTIMIZERS", "PREPARE_RECOMPUTE", "CaptureRequest", "Implementation", "Kind", "Lora", "Precision"]

Kind = Literal["huggingface", "timm", "torchvision", "function"]
Precision = Literal["fp32", "bf16", "fp16", "bf16-weights", "fp16-weights"]
Implementation = Literal["foreach", "fused", "for-loop"]
PREPARE_RECOMPUTE = "nearpeak.train.recompute:apply_recompute"
"""For `CaptureRequest.prepare`: recomputation by a policy, which `prepare_arguments` name."""
OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "rmsprop", "adagrad", "adamax", "nadam", "radam", "adafactor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on frozen weights, as PEFT adds them."""

    rank: int
    targets: tuple[str, ...] | None = None
    """Ends of module names; None: PEFT's own choice for the architecture."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SettingError(f"lora rank {self.rank}: must be at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """A model, its input, and how it is trained."""

    model: str
    """A name, a folder or `config.json` of an HF model, or `module:function`."""
    kind: Kind = "huggingface"
    batch: int = 1
    """Samples of one micro-batch."""
    sequence: int | None = None
    """Tokens of a sample; None: what the model is made for, 128 at most 512."""
    image: int | None = None
    """Side of a square image in pixels; None: what the model is made for."""
    task: str | None = None
    """For HF models: `causal-lm`, `masked-lm`, `seq2seq-lm`, `sequence-classification`, `image-classification`, …;
    None: from the configuration's `architectures`, else by the type of the model."""
    precision: Precision = "fp32"
    """bf16 and fp16: fp32 weights under autocast; with `-weights`: everything in that precision."""
    optimizer: str = "adamw"
    implementation: Implementation = "foreach"
    """How the optimizer goes over parameters; torch's default on GPUs is foreach."""
    recompute: bool = False
    """The model's own gradient checkpointing, each block."""
    lora: Lora | None = None
    micro_batches: int = 1
    clip_norm: float | None = None
    channels_last: bool = False
    cudnn_benchmark: bool = False
    """`torch.backends.cudnn.benchmark`: each new shape of a convolution tries algorithms and then empties the cache."""
    attention: str | None = None
    """For HF models: `sdpa`, `eager`, …; None: the model's default."""
    compute_capability: tuple[int, int] = (8, 0)
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings of the HF configuration or arguments of the model's constructor to change."""
    prepare: str | None = None
    """`module:function` that is called with the model before it is trained, such as one that sets up recomputation."""
    prepare_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batches", "sequence", "image"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name}={value}: must be at least 1.")
        _check("precision", self.precision, get_args(Precision))
        _check("kind", self.kind, get_args(Kind))
        _check("implementation", self.implementation, get_args(Implementation))
        _check("optimizer", self.optimizer, OPTIMIZERS)


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingError(f"{name}={value!r}: must be one of {', '.join(allowed)}.")
