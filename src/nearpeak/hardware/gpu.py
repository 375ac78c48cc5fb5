"""`Gpu`: the exact specifications of one device model, each figure with its source. Unknown is None, never a guess."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearpeak.errors import SettingError

__all__ = ["FIGURES", "Gpu"]

FIGURES = (
    "memory_bytes",
    "memory_bytes_per_s",
    "fp64_flops",
    "fp32_flops",
    "tf32_flops",
    "bf16_flops",
    "fp16_flops",
    "fp8_flops",
    "link_bytes_per_s",
    "max_power_w",
    "multiprocessors",
    "l2_bytes",
    "pcie_generation",
    "pcie_lanes",
)
"""Fields of `Gpu` that hold a figure from a datasheet or a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device model. Arithmetic rates are dense (no sparsity) and with accumulation in fp32."""

    name: str
    """Exactly as the driver reports it: ``NVIDIA H100 80GB HBM3``. An L40S is not an L4."""
    vendor: str
    pci_ids: tuple[str, ...] = ()
    """``10de:2330``; tells models of one name apart."""
    compute_capability: tuple[int, int] | None = None
    """NVIDIA only: (9, 0)."""
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    fp64_flops: float | None = None
    """Floating point operations per second, as all of these. In 64 and 32 bits: of the vector units."""
    fp32_flops: float | None = None
    tf32_flops: float | None = None
    bf16_flops: float | None = None
    fp16_flops: float | None = None
    fp8_flops: float | None = None
    link_bytes_per_s: float | None = None
    """To the other devices of the machine (NVLink, Infinity Fabric), both directions together."""
    max_power_w: float | None = None
    multiprocessors: int | None = None
    """Streaming multiprocessors; compute units of AMD."""
    l2_bytes: int | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    sources: dict[str, str] = field(default_factory=dict)
    """Field → where its figure comes from."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise SettingError("Gpu(name=''): must be the exact name that the driver reports.")
        for figure in FIGURES:
            _check_figure(self, figure)
        for figure in self.sources:
            if figure not in FIGURES:
                raise SettingError(f"Gpu({self.name!r}): source given for {figure!r}, which is no figure of a Gpu.")


def _check_figure(gpu: Gpu, figure: str) -> None:
    value = getattr(gpu, figure)
    if value is None:
        return
    if not value > 0:
        raise SettingError(f"Gpu({gpu.name!r}, {figure}={value!r}): must be above 0; unknown is None.")
    if not gpu.sources.get(figure):
        raise SettingError(f"Gpu({gpu.name!r}, {figure}={value!r}): has no source; name one in `sources`.")
