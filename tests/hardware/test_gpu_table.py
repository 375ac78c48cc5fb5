"""The table of GPUs, held against the traps of tables in the wild and against arithmetic."""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from nearpeak.hardware.gpu import FIGURES, Gpu
from nearpeak.hardware.gpu_table import COMPUTED, find_gpu, gpu_of, known_gpus
from nearpeak.hardware.reading import Device

T = 1e12
TABLE = resources.files("nearpeak.hardware")
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
        assert all(source.strip() for source in each.sources.values())


def test_every_listed_source_is_one_of_a_figure() -> None:
    rows = list(csv.DictReader(TABLE.joinpath("gpu_sources.csv").read_text(encoding="utf-8").splitlines()))
    read = {source.removeprefix(COMPUTED) for each in GPUS for source in each.sources.values()}
    assert {row["source"] for row in rows} == read
    assert len({row["key"] for row in rows}) == len(rows)


def test_at_least_sixty_models_have_all_that_a_prediction_needs() -> None:
    rates = ("fp32_flops", "bf16_flops", "fp16_flops")
    needed = ("memory_bytes", "memory_bytes_per_s", "multiprocessors", "max_power_w")
    whole = [
        each
        for each in GPUS
        if all(getattr(each, figure) for figure in needed)
        and any(getattr(each, rate) for rate in rates)
        and (each.compute_capability is not None or each.vendor == "amd")
    ]
    assert len(whole) >= 85
    assert len({each.name for each in whole if each.vendor == "nvidia"}) >= 60


def test_names_and_ids_are_unique_or_told_apart() -> None:
    ids = [pci_id for each in GPUS for pci_id in each.pci_ids]
    assert len(ids) == len(set(ids))
    by_name: dict[str, list[Gpu]] = {}
    for each in GPUS:
        by_name.setdefault(each.name, []).append(each)
    for twins in by_name.values():
        assert len(twins) == 1 or all(t.pci_ids for t in twins)


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


def test_units_are_those_that_devices_report_not_those_of_their_chips() -> None:
    assert gpu("NVIDIA L4").multiprocessors == 58  # tables: 60, the full chip
    assert gpu("NVIDIA A10G").multiprocessors == 80  # tables: 72, an A10
    assert gpu("NVIDIA H20").multiprocessors == 78
    assert gpu("NVIDIA B300 SXM6 AC").multiprocessors == 148  # tables: 160, the full chip


def test_caches_are_those_that_devices_report() -> None:
    mib = 2**20
    assert gpu("NVIDIA H100 80GB HBM3").l2_bytes == 50 * mib
    assert gpu("NVIDIA H200").l2_bytes == 60 * mib  # tables: 50, an H100
    assert gpu("NVIDIA A100 80GB PCIe").l2_bytes == 40 * mib  # tables: 80
    assert gpu("NVIDIA B200").l2_bytes == 126.5 * mib  # tables: 50
    assert gpu("AMD Instinct MI300X").l2_bytes == 32 * mib  # 4 on each of 8 dies; the runtime reports those of one


def test_power_is_that_of_the_card_and_not_of_its_sibling() -> None:
    assert gpu("NVIDIA A10G").max_power_w == 300  # tables: 150, an A10
    assert gpu("NVIDIA L40S").max_power_w == 350  # tables: 300, an L40
    assert gpu("Tesla V100-SXM2-16GB").max_power_w == 300  # tables: 250, and 300 for the PCIe card
    assert gpu("Tesla V100-PCIE-16GB").max_power_w == 250
    assert gpu("NVIDIA B300 SXM6 AC").max_power_w == 1100  # 1400 is that of a GB300
    assert gpu("NVIDIA GB300").max_power_w == 1400
    assert gpu("AMD Instinct MI250").max_power_w == 560  # the cap of its driver; tables: a typical 500


def test_devices_of_two_dies_are_counted_whole() -> None:
    assert gpu("NVIDIA B200").memory_bytes_per_s == 7.7e12  # tables: 4.1, one die
    assert gpu("AMD Instinct MI250X").multiprocessors == 220
    assert gpu("AMD Instinct MI300X").memory_bytes_per_s == 5.3e12  # tables: 10.3, its clock taken twice
    assert gpu("AMD Instinct MI300X").fp32_flops == 163.4 * T  # tables: 81.7, without packed instructions
    assert gpu("AMD Instinct MI300A").memory_bytes == 128 * 2**30  # tables: 192, an MI300X


def test_what_no_source_settles_is_unknown() -> None:
    unsettled = {
        "NVIDIA GeForce RTX 5090": "fp8_flops",  # an RTX 5060 Ti measured twice what sums in 32 bits would allow
        "NVIDIA L40S": "l2_bytes",  # 48 in one table, 96 for an L40 of the same chip
        "NVIDIA H100 NVL": "l2_bytes",  # tables give that of an H100, as they wrongly do for an H200
        "NVIDIA GeForce RTX 3090 Ti": "link_bytes_per_s",  # sources disagree on whether it has a link
        "NVIDIA GH200 144G HBM3e": "memory_bytes_per_s",  # 4.8 and 5 TB/s
        "NVIDIA GeForce RTX 5060 Ti": "memory_bytes",  # 8 or 16 GB, of one name and one id
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "bf16_flops",
    }
    for name, figure in unsettled.items():
        found = gpu(name)
        assert getattr(found, figure) is None, name
        assert figure not in found.sources


def test_mobile_and_later_models_of_one_name_are_told_apart() -> None:
    name = "NVIDIA GeForce RTX 2060"
    assert find_gpu(name) is None
    assert gpu(name, "10de:1f08").max_power_w == 160
    assert gpu(name, "10de:1f15").max_power_w is None  # in a laptop, its maker's choice
    assert gpu(name, "10de:1f03").multiprocessors == gpu(name, gib=12).multiprocessors == 34
    assert find_gpu(name, memory_bytes=6 * 2**30) is None  # desktop or mobile
    assert gpu("Quadro RTX 4000", "10de:1eb1").multiprocessors == 36
    assert gpu("Quadro RTX 4000", "10de:1eb6").multiprocessors == 40
    assert gpu("NVIDIA GeForce RTX 3060 Ti", "10de:24c9").memory_bytes_per_s == 608.3e9  # with GDDR6X
    assert gpu("NVIDIA GeForce RTX 3060 Ti", "10de:2489").memory_bytes_per_s == 448e9


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


@pytest.mark.parametrize(
    "each",
    [g for g in GPUS if g.sources.get("fp16_flops", "").startswith(COMPUTED)],
    ids=lambda g: f"{g.name} {g.pci_ids}",
)
def test_computed_tensor_rates_are_whole_multiples_of_the_vector_rate(each: Gpu) -> None:
    """Both are multiprocessors × clock × a power of two; GeForce cards do half of what workstation cards do."""
    assert each.fp32_flops and each.fp16_flops
    full = 8 if each.compute_capability in ((7, 0), (7, 5)) else 4
    if each.compute_capability == (8, 0):
        full = 16
    expected = full / 2 if "GeForce" in each.name else full
    assert each.fp16_flops / each.fp32_flops == pytest.approx(expected, rel=0.01)


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
