from __future__ import annotations

import pytest

from nearpeak.errors import SettingError
from nearpeak.predict.cards import card_named
from nearpeak.predict.reading import parse_size


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("A100-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("NVIDIA L40S", "L40S"),
        ("nvidia l4", "L4"),
        ("NVIDIA RTX A4000", "RTX A4000"),
    ],
)
def test_cards_are_known_as_drivers_and_people_write_them(written: str, name: str) -> None:
    assert card_named(written).name == name


@pytest.mark.parametrize("name", ["RTX 40", "L", "RTX 4090 D", "A4000"])
def test_a_part_of_a_name_is_no_name(name: str) -> None:
    with pytest.raises(SettingError):
        card_named(name)


def test_sizes_are_read_in_both_kinds_of_units() -> None:
    assert [parse_size(text) for text in ("1GiB", "1 GB", "1,024 MiB", "12")] == [1 << 30, 10**9, 1 << 30, 12]
