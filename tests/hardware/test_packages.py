from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from nearpeak.hardware.packages import PACKAGES, Package, extra_of, find_package, is_supported

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("5.0.0", True),
        ("5.0", True),
        ("5.23.0+cpu", True),
        ("5.10.0", True),
        ("4.57.3", False),
        ("6.0.0", False),
        ("6", False),
        ("5.1rc1", True),
    ],
)
def test_versions_compare_as_numbers(version: str, supported: bool) -> None:
    assert is_supported(version, Package("transformers", "hf", "5.0", "6", "")) is supported


def test_the_table_says_what_the_project_requires() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    required = {None: project["dependencies"], **project["optional-dependencies"]}
    for package in PACKAGES:
        wanted = f"{package.name}{package.supported}"
        assert wanted in required[package.extra], f"{package.extra}: {required[package.extra]}"
    for extra in (None, "train", "hf", "parquet", "tui"):
        names = {re.match(r"[\w-]+", text).group() for text in required[extra]}  # pyright: ignore[reportOptionalMemberAccess]
        assert names - {"nearpeak"} == {package.name for package in PACKAGES if package.extra == extra}


def test_extras_are_found_by_import_name() -> None:
    assert extra_of("transformers") == "hf"
    assert extra_of("torch") == "train"
    assert extra_of("pynvml") is None
    assert extra_of("attic") is None


def test_what_is_not_installed_is_none() -> None:
    found = find_package(Package("no-such-package-of-nearpeak", "hf", "1", None, ""))
    assert (found.version, found.is_supported) == (None, None)
