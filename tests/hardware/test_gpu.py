from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearpeak.errors import SettingError
from nearpeak.hardware.gpu import FIGURES, Gpu


def test_gpu_survives_json_and_keeps_the_unknown_unknown() -> None:
    gpu = Gpu(
        name="NVIDIA L40S",
        vendor="nvidia",
        pci_ids=("10de:26b9",),
        compute_capability=(8, 9),
        memory_bytes=48 << 30,
        sources={"memory_bytes": "vendor datasheet"},
    )
    again = msgspec.json.decode(msgspec.json.encode(gpu), type=Gpu)
    assert again == gpu
    assert again.bf16_flops is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bf16_flops": 0.0, "sources": {"bf16_flops": "datasheet"}}, "unknown is None"),
        ({"bf16_flops": float("nan"), "sources": {"bf16_flops": "datasheet"}}, "above 0"),
        ({"bf16_flops": 1e15}, "no source"),
        ({"sources": {"speed": "datasheet"}}, "'speed'.*no figure"),
        ({"name": " "}, "exact name"),
    ],
)
def test_gpu_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Gpu(**({"name": "NVIDIA L4", "vendor": "nvidia"} | settings))


def test_figures_are_fields() -> None:
    assert set(FIGURES) <= set(Gpu.__slots__)
