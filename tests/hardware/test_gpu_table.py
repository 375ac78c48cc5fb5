"""The table of GPUs, held against the traps of tables in the wild and against arithmetic."""

from __future__ import annotations

import pytest

from nearpeak.hardware.gpu import FIGURES, Gpu
from nearpeak.hardware.gpu_table import find_gpu, gpu_of, known_gpus
from nearpeak.hardware.reading import Device

T = 1e12
GPUS = known_gpus()


def gpu(name: str, pci_id: str | None = None, gib: float | None = None) -> Gpu:
    found = find_gpu(name, pci_id, None if gib is None else int(gib * 2**30))
    assert found is not None, name
    return found


def test_there_are_many_of_every_kind() -> None:
    assert len(GPUS) >= 60
    names = " ".join(each.name for each in GPUS)
    words = """
        V100 A100 A10G A40 H100 H200 H20 GH200 GB200 B200 B300 T4 L4 L40S 2080 3090 4090 5090 A6000 Ada
        MI210 MI250X MI300X MI325X MI355X
    """
    for word in words.split():
        assert word in names


def test_every_figure_has_a_source() -> None:
    for each in GPUS:
        known = {figure for figure in FIGURES if getattr(each, figure) is not None}
        assert known and known == set(each.sources)
        assert all("memory" not in source.lower().split("datasheet")[0] or source for source in each.sources.values())


def test_names_and_ids_are_unique_or_told_apart() -> None:
    ids = [pci_id for each in GPUS for pci_id in each.pci_ids]
    assert len(ids) == len(set(ids))
    by_name: dict[str, list[Gpu]] = {}
    for each in GPUS:
        by_name.setdefault(each.name, []).append(each)
    for twins in by_name.values():
        assert len(twins) == 1 or (all(t.pci_ids for t in twins) and len({t.memory_bytes for t in twins}) == len(twins))


# -- the traps ---------------------------------------------------------------------------------------------------------


def test_an_l4_has_its_own_bandwidth() -> None:
    assert gpu("NVIDIA L4").memory_bytes_per_s == 300e9


def test_an_l40s_is_neither_an_l4_nor_an_l40() -> None:
    assert gpu("NVIDIA L40S").bf16_flops == 362 * T
    assert gpu("NVIDIA L40").bf16_flops == 181 * T
    assert gpu("NVIDIA L4").bf16_flops == 121 * T


def test_an_h200_is_known_with_its_memory() -> None:
    assert gpu("NVIDIA H200").memory_bytes == 141 * 2**30
    assert gpu("NVIDIA H200").memory_bytes_per_s == 4.8e12
    assert gpu("NVIDIA H200").bf16_flops == gpu("NVIDIA H100 80GB HBM3").bf16_flops


def test_an_a4000_is_no_a40_and_an_a10g_no_a10() -> None:
    assert gpu("NVIDIA RTX A4000").bf16_flops == pytest.approx(76.7 * T)
    assert gpu("NVIDIA A40").bf16_flops == pytest.approx(149.7 * T)
    assert gpu("NVIDIA A10G").bf16_flops == 70 * T
    assert gpu("NVIDIA A10").bf16_flops == 125 * T
    assert gpu("NVIDIA A100-SXM4-40GB").memory_bytes_per_s == 1555e9


def test_rates_are_dense_and_accumulate_in_fp32() -> None:
    sparse_or_half = {  # what other tables give: with sparsity, or with accumulation in 16 bits
        "NVIDIA H100 80GB HBM3": 1979,
        "NVIDIA H100 PCIe": 1513,
        "NVIDIA L40S": 733,
        "NVIDIA L4": 242,
        "NVIDIA A100-SXM4-80GB": 624,
        "NVIDIA GeForce RTX 4090": 330,
        "NVIDIA B200": 4500,
    }
    for name, wrong in sparse_or_half.items():
        assert (gpu(name).bf16_flops or 0) == pytest.approx(wrong * T / 2, rel=0.02)
    assert gpu("NVIDIA GeForce RTX 3090").bf16_flops == pytest.approx(71.2 * T, rel=0.01)  # 35.6 is that of its shaders


def test_memory_of_a_b200_is_its_own() -> None:
    assert gpu("NVIDIA B200").memory_bytes == 180 * 2**30


def test_names_are_not_matched_in_part() -> None:
    for name in ("NVIDIA L", "L4", "NVIDIA L40S-48Q", "H100", "NVIDIA A100", "NVIDIA GeForce RTX 4090 Laptop GPU", ""):
        assert find_gpu(name) is None


def test_models_of_one_name_are_told_apart_or_not_known() -> None:
    name = "NVIDIA GeForce RTX 3080"
    assert find_gpu(name) is None
    assert gpu(name, "10de:2206").multiprocessors == 68
    assert gpu(name, "10DE:220A").multiprocessors == 70
    assert gpu(name, gib=11.8).multiprocessors == 70  # a driver reports a little less than twelve
    assert find_gpu(name, "10de:ffff") is None


def test_old_drivers_leave_the_makers_name_out() -> None:
    assert gpu("GeForce RTX 3090") is gpu("NVIDIA GeForce RTX 3090")
    assert gpu("A100-SXM4-40GB") is gpu("NVIDIA A100-SXM4-40GB")


def test_a_device_finds_its_model_and_an_instance_has_none() -> None:
    card = Device(index=0, name="NVIDIA H100 80GB HBM3", pci_id="10de:2330")
    found = gpu_of(card)
    assert found is not None and found.multiprocessors == 132
    assert gpu_of(Device(index=0, mig=0, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb")) is None
    assert gpu_of(Device(index=0, name=None, pci_id="10de:2330")) is found


# -- arithmetic: figures that must fit together ------------------------------------------------------------------------


@pytest.mark.parametrize("each", [g for g in GPUS if g.vendor == "nvidia"], ids=lambda g: f"{g.name} {g.pci_ids}")
def test_rates_fit_together(each: Gpu) -> None:
    if each.bf16_flops is not None:
        assert each.fp16_flops == each.bf16_flops
        if each.tf32_flops is not None:
            assert each.tf32_flops == pytest.approx(each.bf16_flops / 2, rel=0.02)
        if each.fp8_flops is not None:
            assert each.fp8_flops == pytest.approx(2 * each.bf16_flops, rel=0.02)
    assert (each.fp8_flops is None) or (each.compute_capability or (0, 0)) >= (8, 9)
    assert (each.bf16_flops is None) or (each.compute_capability or (0, 0)) >= (8, 0)


CLOCKS_MHZ = (1000, 3000)


@pytest.mark.parametrize(
    "each", [g for g in GPUS if g.fp32_flops and g.multiprocessors], ids=lambda g: f"{g.name} {g.pci_ids}"
)
def test_vector_rate_implies_a_clock_that_devices_have(each: Gpu) -> None:
    lanes = 128
    if each.compute_capability in ((6, 0), (7, 0), (7, 5), (8, 0)):
        lanes = 64
    if each.vendor == "amd":
        lanes = 64 if "MI1" in each.name or "MI2" in each.name else 128
    clock_mhz = (each.fp32_flops or 0) / ((each.multiprocessors or 1) * lanes * 2) / 1e6
    assert CLOCKS_MHZ[0] < clock_mhz < CLOCKS_MHZ[1]
