from __future__ import annotations

import pytest

from nearpeak.errors import SettingError
from nearpeak.hardware.gpu_table import find_gpu, known_gpus
from nearpeak.predict.cards import LEAST_USABLE_SHARE, USABLE_MIB, card_named
from nearpeak.predict.reading import parse_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 4090 D", "NVIDIA GeForce RTX 4090 D"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("A100-80GB", "A100 80GB"),
        ("a100 40 GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("H100", "H100 80GB"),
        ("T4", "Tesla T4"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        ("V100 32GB", "V100 32GB"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("nvidia l4", "NVIDIA L4"),
        ("RTX A4000", "NVIDIA RTX A4000"),
        ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("RTX 3080 12GB", "NVIDIA GeForce RTX 3080"),
    ],
)
def test_cards_are_known_as_drivers_and_people_write_them(written: str, name: str) -> None:
    assert card_named(written).name == name


@pytest.mark.parametrize("name", ["RTX 40", "L", "A4000", "4090", "L4 40GB", "", "NVIDIA", "RTX 5060 Ti"])
def test_a_part_of_a_name_is_no_name(name: str) -> None:
    with pytest.raises(SettingError, match="its memory is not known"):
        card_named(name)


@pytest.mark.parametrize(
    ("name", "choices"),
    [("A100", "'A100 40GB' or 'A100 80GB'"), ("NVIDIA GeForce RTX 3080", "'RTX 3080 10GB' or 'RTX 3080 12GB'")],
)
def test_a_model_of_several_sizes_is_asked_about(name: str, choices: str) -> None:
    with pytest.raises(SettingError, match=f"say which: {choices}"):
        card_named(name)


def test_memory_is_that_of_the_table_and_usable_what_was_read() -> None:
    for gpu in known_gpus():
        assert gpu.name not in USABLE_MIB or find_gpu(gpu.name) is gpu
    for name, usable_mib in USABLE_MIB.items():
        card, listed = card_named(name), find_gpu(name)
        assert listed is not None
        assert (card.memory_bytes, card.compute_capability) == (listed.memory_bytes, listed.compute_capability)
        assert LEAST_USABLE_SHARE * card.memory_bytes <= card.usable_bytes == usable_mib * MIB < card.memory_bytes
    unread = card_named("NVIDIA A30")
    assert unread.usable_bytes == int(LEAST_USABLE_SHARE * 24 * 1024 * MIB)
    assert "91%" in unread.source


def test_what_is_no_cuda_device_is_said_so() -> None:
    with pytest.raises(SettingError, match="no CUDA device"):
        card_named("AMD Instinct MI300X")


def test_sizes_are_read_in_both_kinds_of_units() -> None:
    assert [parse_size(text) for text in ("1GiB", "1 GB", "1,024 MiB", "12")] == [1 << 30, 10**9, 1 << 30, 12]
