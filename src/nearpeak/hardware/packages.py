"""Which packages nearpeak uses, the versions it supports, the extra that brings each, and what is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

__all__ = ["PACKAGES", "InstalledPackage", "Package", "extra_of", "find_package", "is_supported"]


@dataclass(frozen=True, slots=True)
class Package:
    """One package that nearpeak can use."""

    name: str
    """As on the package index."""
    extra: str | None
    """The extra that brings it; None for the base."""
    at_least: str
    below: str | None
    purpose: str
    """What nearpeak needs it for."""
    module: str | None = None
    """Import name, where it differs from `name`."""

    @property
    def supported(self) -> str:
        """The supported versions, as pip writes them."""
        return f">={self.at_least}" + (f",<{self.below}" if self.below else "")


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A package beside what is installed of it."""

    package: Package
    version: str | None
    """None where it is not installed."""
    is_supported: bool | None
    """Whether the installed version is in the supported range; None where none is installed."""


# One line each; a test compares ranges and extras with pyproject.toml.
PACKAGES = (
    Package("click", None, "8.1.7", None, "the command line"),
    Package("rich", None, "13.7", None, "tables and progress bars"),
    Package("msgspec", None, "0.19", None, "plans, jobs and recordings on disk"),
    Package("numpy", None, "1.26", None, "arithmetic on arrays"),
    Package("psutil", None, "5.9", None, "memory and processes of this machine"),
    Package("nvidia-ml-py", None, "12.560", None, "readings of NVIDIA devices", module="pynvml"),
    Package("torch", "train", "2.6", None, "training"),
    Package("safetensors", "train", "0.4.3", None, "saved models"),
    Package("tomli-w", "train", "1.0", None, "plans written as TOML", module="tomli_w"),
    Package("transformers", "hf", "5.0", "6", "the Trainer drop-in, `nearpeak train`, `nearpeak demo`"),
    Package("tokenizers", "hf", "0.22", None, "tokenizers of text tasks"),
    Package("datasets", "hf", "4.0", None, "data of text tasks"),
    Package("accelerate", "hf", "1.1", None, "what transformers.Trainer runs on"),
    Package("pyarrow", "parquet", "17", None, "Parquet files"),
    Package("textual", "tui", "1.0", None, "live views in the terminal"),
    Package("prometheus-client", "prometheus", "0.20", None, "metrics for Prometheus", module="prometheus_client"),
    Package("amdsmi", "amd", "6.3", None, "readings of AMD devices"),
)


def extra_of(module: str) -> str | None:
    """The extra that brings an importable module, or None where no extra does."""
    return next((package.extra for package in PACKAGES if (package.module or package.name) == module), None)


def find_package(package: Package) -> InstalledPackage:
    """Look up what is installed of a package, without importing it."""
    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return InstalledPackage(package, None, None)
    return InstalledPackage(package, version, is_supported(version, package))


def is_supported(version: str, package: Package) -> bool:
    """Whether a version lies in the package's range.

    >>> is_supported("5.23.0", Package("transformers", "hf", "5.0", "6", ""))
    True
    """
    release = _release(version)
    return _release(package.at_least) <= release and (package.below is None or release < _release(package.below))


def _release(version: str) -> tuple[int, ...]:
    """Numbers of the release part: ``2.13.0+cpu`` gives ``(2, 13)``; trailing zeros say nothing."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
