"""Memory of GPUs as their drivers report it, and what a process takes of it before its first tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearpeak.errors import SettingError
from nearpeak.forecast import Interval
from nearpeak.hardware.gpu_table import find_gpu

__all__ = ["CARDS", "DeviceModel", "card_named", "context_bytes"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What of a card matters for memory."""

    name: str
    memory_bytes: int
    """In all, as `nvidia-smi` shows it."""
    compute_capability: tuple[int, int]
    source: str = "memory.total of nvidia-smi"


def _card(name: str, memory_mib: int, capability: tuple[int, int]) -> DeviceModel:
    return DeviceModel(name, memory_mib * MIB, capability)


CARDS: tuple[DeviceModel, ...] = (
    _card("GTX 1080 Ti", 11_264, (6, 1)),
    _card("P100 16GB", 16_384, (6, 0)),
    _card("V100 16GB", 16_384, (7, 0)),
    _card("V100 32GB", 32_768, (7, 0)),
    _card("T4", 15_360, (7, 5)),
    _card("RTX 2080 Ti", 11_264, (7, 5)),
    _card("RTX 3060", 12_288, (8, 6)),
    _card("RTX 3080", 10_240, (8, 6)),
    _card("RTX 3090", 24_576, (8, 6)),
    _card("RTX 4060 Ti 16GB", 16_380, (8, 9)),
    _card("RTX 4070", 12_282, (8, 9)),
    _card("RTX 4080", 16_376, (8, 9)),
    _card("RTX 4090", 24_564, (8, 9)),
    _card("RTX 5090", 32_607, (12, 0)),
    _card("RTX A4000", 16_376, (8, 6)),
    _card("RTX A5000", 24_564, (8, 6)),
    _card("RTX A6000", 49_140, (8, 6)),
    _card("RTX 6000 Ada", 49_140, (8, 9)),
    _card("A10", 23_028, (8, 6)),
    _card("A10G", 23_028, (8, 6)),
    _card("A40", 46_068, (8, 6)),
    _card("L4", 23_034, (8, 9)),
    _card("L40", 46_068, (8, 9)),
    _card("L40S", 46_068, (8, 9)),
    _card("A100 40GB", 40_960, (8, 0)),
    _card("A100 80GB", 81_920, (8, 0)),
    _card("H100", 81_559, (9, 0)),
    _card("H200", 143_771, (9, 0)),
    _card("B200", 183_359, (10, 0)),
)
_NOISE = re.compile(r"\b(nvidia|geforce|tesla|quadro|sxm\d?|pcie|hbm\d\w?|generation)\b|[-_]", re.IGNORECASE)


def card_named(name: str) -> DeviceModel:
    """By name, as people and drivers write it; never by a part of it: an L40S is no L40."""
    wanted = _plain(name)
    for card in CARDS:
        if wanted == _plain(card.name):
            return card
    listed = find_gpu(name)
    if listed is not None and listed.memory_bytes is not None and listed.compute_capability is not None:
        return DeviceModel(listed.name, listed.memory_bytes, listed.compute_capability, "hardware/gpus.csv")
    unnamed = [card for card in CARDS if _plain(card.name).startswith(f"{wanted} ")]
    if len(unnamed) > 1:
        choices = " or ".join(repr(card.name) for card in unnamed)
        raise SettingError(f"gpu {name!r}: say which: {choices}.")
    raise SettingError(
        f"gpu {name!r}: its memory is not known. Give one of {', '.join(card.name for card in CARDS)}, or its memory "
        "with --gpu-memory."
    )


def _plain(name: str) -> str:
    """`NVIDIA A100-SXM4-40GB` and `A100 40GB` are one."""
    text = _NOISE.sub(" ", name).upper()
    text = re.sub(r"(\d)\s*(GI?B)\b", r"\1GB", text)
    words = text.split()
    return " ".join(word for word in words if word not in ("80GB",) or "A100" in words)


def context_bytes(card: DeviceModel | None) -> Interval:
    """CUDA context with the kernels that a training step loads: driver, card and libraries decide.

    Measured on torch 2.6 with CUDA 12.4 (RTX 3060) and on an A100; kernels are loaded when they are first used.
    """
    if card is None or card.compute_capability >= (8, 0):
        return Interval(250 * MIB, 420 * MIB, 750 * MIB)
    return Interval(250 * MIB, 450 * MIB, 900 * MIB)
