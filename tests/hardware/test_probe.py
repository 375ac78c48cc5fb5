from __future__ import annotations

from pathlib import Path

import pytest

from nearpeak.hardware.nvml import NvmlReading
from nearpeak.hardware.probe import ProbeFailure, probe

HEALTHY = """
from types import SimpleNamespace
class NVMLError(Exception): value = 3
print("libraries talk while they load")
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "NVIDIA L4"
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=24 << 30, used=1)
def refuse(*arguments): raise NVMLError
nvmlSystemGetDriverVersion = nvmlSystemGetCudaDriverVersion = nvmlDeviceGetUUID = nvmlDeviceGetPciInfo = refuse
nvmlDeviceGetCudaComputeCapability = nvmlDeviceGetMigMode = refuse
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a `pynvml` of the test's own before the real one, for child processes."""
    import os

    def install(source: str) -> None:
        (tmp_path / "pynvml.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    return install


def test_an_answer_comes_back_whole(driver) -> None:
    driver(HEALTHY)
    reading = probe("nvml", NvmlReading)
    assert isinstance(reading, NvmlReading)
    assert (reading.state, reading.devices[0].name, reading.devices[0].uuid) == ("ok", "NVIDIA L4", None)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV"),
        ("import time; time.sleep(60)", "gave no answer within 1 s"),
        ("raise RuntimeError('driver on fire')", "RuntimeError: driver on fire"),
        ("import os; os._exit(3)", "ended with exit code 3"),
        ("import os; os._exit(0)", "gave an answer that is none"),
    ],
    ids=["crash", "hang", "raise", "exit", "silence"],
)
def test_what_happens_to_the_child_does_not_happen_to_us(driver, source: str, why: str) -> None:
    driver(source)
    failure = probe("nvml", NvmlReading, timeout_s=1 if "sleep" in source else 30)
    assert isinstance(failure, ProbeFailure)
    assert why in failure.why


def test_a_damaged_driver_library_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    reading = probe("nvml", NvmlReading)
    assert isinstance(reading, NvmlReading)
    assert reading.state == "broken"
    assert "libnvidia-ml.so.1" in (reading.detail or "")
