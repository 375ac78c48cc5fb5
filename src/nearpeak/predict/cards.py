"""Cards by the names that people write, what of their memory programs get, and what a process takes before its first
tensor. Models and their memory are those of `hardware/gpus.csv`; here stands what that table lacks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nearpeak.errors import SettingError
from nearpeak.forecast import Interval
from nearpeak.hardware.gpu import Gpu
from nearpeak.hardware.gpu_table import find_gpu, known_gpus

__all__ = ["DeviceModel", "card_named", "context_bytes"]

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What of a card matters for memory."""

    name: str
    memory_bytes: int
    """What it is built with: no program gets more."""
    usable_bytes: int
    """What firmware, error correction and driver are expected to leave of an empty card, at least."""
    compute_capability: tuple[int, int]
    source: str


USABLE_MIB: dict[str, int] = {
    "Tesla P100-PCIE-16GB": 16_280,
    "Tesla V100-SXM2-16GB": 16_130,
    "Tesla V100-SXM2-32GB": 32_494,
    "Tesla T4": 14_912,
    "NVIDIA GeForce RTX 2080 SUPER": 7_784,
    "NVIDIA GeForce RTX 2080 Ti": 11_009,
    "NVIDIA GeForce RTX 3060": 11_920,
    "NVIDIA GeForce RTX 3090": 24_257,
    "NVIDIA GeForce RTX 4090": 24_111,
    "NVIDIA GeForce RTX 5090": 32_102,
    "NVIDIA RTX A6000": 48_677,
    "NVIDIA A10": 22_599,
    "NVIDIA A10G": 22_589,
    "NVIDIA L4": 22_565,
    "NVIDIA L40S": 45_457,
    "NVIDIA A100-SXM4-40GB": 40_339,
    "NVIDIA A100-SXM4-80GB": 81_038,
    "NVIDIA A100 80GB PCIe": 81_049,
    "NVIDIA H100 80GB HBM3": 81_079,
    "NVIDIA H20": 97_285,
    "NVIDIA H200": 143_073,
    "NVIDIA B200": 182_640,
}
"""The smallest figure found for each in public logs: what torch says a device has (`total_memory`, the capacity in its
out-of-memory messages), CUDA's deviceQuery, or memory.total less memory.reserved of nvidia-smi. Drivers differ by up to
2 %."""
READ_SOURCE = "hardware/gpus.csv; usable: the least that CUDA or nvidia-smi said of a card by this name in public logs"
LEAST_USABLE_SHARE = 0.91
"""Of cards that are not among these: the smallest share among those that are, a T4's."""
UNREAD_SOURCE = f"hardware/gpus.csv; usable: at least {LEAST_USABLE_SHARE:.0%} of it, as of every card that was read"

_MEMORY = re.compile(r"\b(\d+)\s*G(?:I?B)?\b", re.IGNORECASE)
_MAKERS = re.compile(r"\b(nvidia|geforce|tesla|generation|sxm\d?|pcie|hbm\d\w?)\b", re.IGNORECASE)
"""What people leave out. Never a word by which models differ: an L40S is no L40, a V100S no V100."""


def card_named(name: str) -> DeviceModel:
    """By the driver's exact name, or as people write it: all words that tell models apart, with the memory where a
    model comes with several. Never by a part of the name."""
    exact = find_gpu(name)
    found = tuple(gpu for gpu in ((exact,) if exact else _written(name)) if gpu.memory_bytes is not None)
    if not found:
        raise SettingError(
            f"gpu {name!r}: its memory is not known.{_alike(name)} Give the card's whole name, or its memory with "
            "--gpu-memory."
        )
    labels = sorted({_label(gpu) for gpu in found})
    if len(labels) > 1:
        raise SettingError(f"gpu {name!r}: say which: {' or '.join(map(repr, labels))}.")
    return _device(found[0].name if len(found) == 1 else labels[0], found)


def _written(name: str) -> tuple[Gpu, ...]:
    words, memory_gib = _split(name)
    return tuple(gpu for gpu in known_gpus() if words == _split(gpu.name)[0] and memory_gib in (None, _gib(gpu)))


def _split(name: str) -> tuple[tuple[str, ...], int | None]:
    """`NVIDIA A100-SXM4-40GB` and `a100 40 GB` are (("A100",), 40)."""
    text = name.replace("-", " ").replace("_", " ")
    memory = _MEMORY.search(text)
    words = _MAKERS.sub(" ", _MEMORY.sub(" ", text)).upper().split()
    return tuple(words), None if memory is None else int(memory.group(1))


def _gib(gpu: Gpu) -> int:
    return round((gpu.memory_bytes or 0) / GIB)


def _label(gpu: Gpu) -> str:
    return f"{' '.join(_split(gpu.name)[0])} {_gib(gpu)}GB"


def _alike(name: str) -> str:
    by_label = {_label(gpu): gpu.name for gpu in known_gpus() if gpu.memory_bytes is not None}
    near = difflib.get_close_matches(name.upper(), by_label, n=3, cutoff=0.5)
    return f" Known by names like it: {', '.join(repr(by_label[each]) for each in near)}." if near else ""


def _device(name: str, found: Sequence[Gpu]) -> DeviceModel:
    memory, capability = found[0].memory_bytes, found[0].compute_capability
    if capability is None:
        raise SettingError(f"gpu {name!r}: no CUDA device; what its kernels take beside tensors is not known.")
    assert memory is not None
    read = [USABLE_MIB[gpu.name] * MIB for gpu in found if gpu.name in USABLE_MIB]
    if read:
        return DeviceModel(name, memory, min(read), capability, READ_SOURCE)
    return DeviceModel(name, memory, int(memory * LEAST_USABLE_SHARE), capability, UNREAD_SOURCE)


CONTEXT_MIB = (42, 450, 750)
"""Low, likely, high on cards since Ampere. Seen: 287 MiB with kernels loaded when first used, 667 with all loaded at
once; by out-of-memory messages of torch 2, which say what a process holds beside torch's own memory, 473 and 504 on two
RTX 4090 and 502 on an A100, all of inference. Four training runs on an RTX 3060 and an A100, said to include the
context, held only 42 to 96 above the predicted reserved memory: the low end. Training may load more kernels: the high
end is a guess."""
OLDER_CONTEXT_MIB = (42, 250, 750)
"""Before Ampere: such messages gave 104 to 135 MiB on T4s, all of inference; likely and high are guesses."""
CONVOLUTION_HIGH_MIB = 1_850
"""With cuDNN: 585 training runs of image models on an A100 held 1,729 MiB (median) beside what was predicted, whatever
else nvidia-smi counted there. Which torch and CUDA they used is not stated."""


def context_bytes(card: DeviceModel | None, *, convolutions: bool = False) -> Interval:
    """CUDA context with the kernels that a training step loads: driver, card and libraries decide."""
    newer = card is None or card.compute_capability >= (8, 0)
    low, likely, high = CONTEXT_MIB if newer else OLDER_CONTEXT_MIB
    return Interval(low * MIB, likely * MIB, (CONVOLUTION_HIGH_MIB if convolutions else high) * MIB)
