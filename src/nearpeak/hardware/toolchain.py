"""What `torch.compile` needs besides torch: a C++ compiler, Python's headers, and Triton for GPUs."""

from __future__ import annotations

import os
import shutil
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["Toolchain", "read_toolchain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Compilers on this machine; what is not here is None."""

    compiler: str | None
    python_headers: str | None
    triton_version: str | None


def read_toolchain() -> Toolchain:
    """Look for what torch.compile would look for."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "c++", "clang++"]
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return Toolchain(
        compiler=next((path for path in map(shutil.which, candidates) if path), None),
        python_headers=str(headers.parent) if headers.is_file() else None,
        triton_version=_version_of("triton") or _version_of("pytorch-triton-rocm"),
    )


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
