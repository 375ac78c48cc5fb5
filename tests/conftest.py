"""What holds for every test: one thread, no network, no leaks.

Nothing here imports torch: a test that does not need it must not pay for it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure: pytest-timeout ends what hangs, and speed is measured where it is promised.
settings.register_profile("nearpeak", deadline=None)
settings.load_profile("nearpeak")

# Before any library reads them. One thread: pools fight over few cores, and no figure may depend on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.pop("NO_COLOR", None)

GRACE_S = 2.0
"""How long a thread may take to end after its test."""
THIRD_PARTY_THREADS = ("tqdm", "pytest_timeout", "ThreadPoolExecutor", "asyncio", "fsspecIO", "QueueFeederThread")
"""Pools that libraries keep for the life of the process, by the start of a thread's or its class's name."""
THIRD_PARTY_VARIABLES = (
    "ACCELERATE_",
    "CUDA_MODULE_LOADING",
    "FSDP_",
    "KMP_",
    "NCCL_",
    "PYTEST_",
    "PYTORCH_",
    "TF_",
    "TORCH",
    "TRITON_",
    "WANDB_",
)
"""Set by libraries when they are imported or run."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep caches of libraries out of the home of whoever runs the tests."""
    home = tempfile.mkdtemp(prefix="nearpeak-tests-")
    os.environ["HF_HOME"] = home
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a device that is not here."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread or an environment variable behind, and clean up so that it fails alone."""
    threads, variables = set(threading.enumerate()), dict(os.environ)
    yield
    leaked_variables = _restore_environment(variables)
    leaked_threads = _leaked_threads(threads)
    _restore_settings()
    assert not leaked_variables, f"the test changed environment variables and left them: {leaked_variables}"
    assert not leaked_threads, f"the test left threads running: {leaked_threads}"


def _restore_environment(before: dict[str, str]) -> list[str]:
    changed = {name for name, _ in before.items() ^ os.environ.items()}
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return sorted(name for name in changed if not name.startswith(THIRD_PARTY_VARIABLES))


def _leaked_threads(before: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + GRACE_S
    while left := [thread for thread in threading.enumerate() if thread not in before and not _is_third_party(thread)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return [thread.name for thread in left]


def _is_third_party(thread: threading.Thread) -> bool:
    homes = (type(thread).__module__, getattr(getattr(thread, "_target", None), "__module__", None) or "")
    if isinstance(thread, threading._DummyThread):  # a library's own, such as autograd's for a device, that ran Python
        return True
    compiling = homes[1].startswith("torch._inductor")  # its pool of compilers stays for the life of the process
    return compiling or thread.name.startswith(THIRD_PARTY_THREADS) or homes[0].startswith(THIRD_PARTY_THREADS)


def _restore_settings() -> None:
    """Settings of the process that a test of the command line or of a plan changes on purpose."""
    if "nearpeak.report.terminal" in sys.modules:
        sys.modules["nearpeak.report.terminal"].configure(verbosity=0, color=True)
    if "torch" in sys.modules and sys.modules["torch"].get_num_threads() != 1:
        sys.modules["torch"].set_num_threads(1)
