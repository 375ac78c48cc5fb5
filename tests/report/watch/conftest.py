"""Makes the stub driver of tests/hardware importable here, and builds it once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "hardware" / "stub"))


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds our libnvidia-ml.so.1."""
    from stub_nvml import build

    return build(tmp_path_factory.mktemp("stub"))
