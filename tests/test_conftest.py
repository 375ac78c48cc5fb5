"""The guards of `conftest.py` catch what they are for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUSPECTS = """
import os, threading, time

def test_leaks_a_variable():
    os.environ["LEFT_BEHIND"] = "1"

def test_changes_a_variable():
    os.environ["HF_HUB_OFFLINE"] = "0"

def test_leaks_a_thread():
    threading.Thread(target=time.sleep, args=(10,), name="left-behind", daemon=True).start()

def test_innocent(monkeypatch):
    assert "LEFT_BEHIND" not in os.environ
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("MINE", "1")
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
"""


def test_a_leak_fails_the_test_that_left_it_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "test_suspects.py").write_text(SUSPECTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    failed = sorted(line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("ERROR"))
    assert failed == ["test_changes_a_variable", "test_leaks_a_thread", "test_leaks_a_variable"], done.stdout
    for name in ("LEFT_BEHIND", "HF_HUB_OFFLINE", "left-behind"):
        assert name in done.stdout
