from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nearpeak.cli.main import main


def doctor(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearpeak", "doctor", *options]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    done = doctor("--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_json_has_a_stable_schema(document: dict[str, Any]) -> None:
    assert list(document) == [
        "schema",
        "nearpeak",
        "checks",
        "host",
        "nvml",
        "torch",
        "torch_failure",
        "packages",
        "toolchain",
    ]
    assert document["schema"] == 1
    assert all(list(check) == ["name", "state", "found", "meaning", "remedy"] for check in document["checks"])
    assert {check["state"] for check in document["checks"]} <= {"ok", "missing", "broken", None}


def test_this_machine_is_seen(document: dict[str, Any]) -> None:
    import torch

    assert document["torch"]["version"] == torch.__version__
    assert "math" in document["torch"]["attention"]
    assert ("gloo" in document["torch"]["backends"]) == torch.distributed.is_gloo_available()
    versions = {found["package"]["name"]: found["version"] for found in document["packages"]}
    assert versions["msgspec"]


CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.slow
def test_survives_a_driver_and_a_torch_that_crash(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(CRASHES)
    (tmp_path / "torch.py").write_text(CRASHES)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = doctor("--no-color", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    rows = {line[:17].strip(): line for line in done.stdout.splitlines()}
    assert "broken" in rows["nvidia driver"]
    assert "the driver crashed with SIGSEGV" in rows["nvidia driver"]
    assert "broken" in rows["torch"]
    assert "pip install --force-reinstall torch" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_table_says_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nearpeak.hardware import checks

    ok = checks.Check("torch", "ok", "2.13", "Training runs on it.")
    missing = checks.Check("extra tui", "missing", "without textual", "For live views.", "pip install 'nearpeak[tui]'")
    monkeypatch.setattr(checks, "examine", lambda: None)
    monkeypatch.setattr(checks, "judge", lambda seen: [ok, missing])
    assert main(["doctor"]) == 0
    usual = capsys.readouterr().out
    assert "extra tui: missing\n    For live views.\n    pip install 'nearpeak[tui]'" in usual
    assert "Training runs on it." not in usual
    assert main(["doctor", "-v"]) == 0
    assert "Training runs on it." in capsys.readouterr().out
    monkeypatch.setattr(checks, "judge", lambda seen: [ok])
    assert main(["doctor", "-q"]) == 0
    captured = capsys.readouterr()
    assert "Everything that nearpeak can use is here." in captured.out
