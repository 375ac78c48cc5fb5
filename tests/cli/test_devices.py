from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "hardware" / "stub"
sys.path.insert(0, str(STUB))
from stub_nvml import build, describe, environment, geforce, h100, has_compiler, silent  # noqa: E402

from nearpeak.cli.main import main  # noqa: E402
from nearpeak.hardware.reading import FIGURES  # noqa: E402

needs_stub = pytest.mark.skipif(not has_compiler(), reason="the stub driver needs gcc on Linux")


def run(*arguments: str, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearpeak", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("machine")
    devices = [h100(0, pids=(os.getpid(),)), geforce(1), silent(2)]
    return environment(build(folder), describe(folder / "devices.txt", devices))


@needs_stub
def test_json_holds_every_figure_or_says_why_not(machine: dict[str, str]) -> None:
    document = json.loads(run("devices", "--json", variables=machine).stdout)
    assert document["schema"] == 1 and len(document["devices"]) == 3
    for device in document["devices"]:
        reading = device["reading"]
        for figure in FIGURES:
            assert (reading[figure] is None) == (figure in reading["missing"]), figure
    assert document["devices"][0]["reading"]["power_w"] == 431.123
    assert document["host"]["memory_total_bytes"] > 0


@needs_stub
def test_text_names_devices_and_leaves_the_unknown_out(machine: dict[str, str]) -> None:
    done = run("devices", variables=machine)
    assert done.returncode == 0 and not done.stderr
    assert "0  NVIDIA H100 80GB HBM3" in done.stdout and "sm busy 88.12 %" in done.stdout
    assert f"processes: {os.getpid()}" in done.stdout
    thor = done.stdout.split("NVIDIA Thor")[1].split("host")[0]
    assert thor.split() == ["clock:", "clock", "1,575", "MHz"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "unsupported: " in run("devices", "-v", variables=machine).stdout


@needs_stub
def test_output_is_not_overwritten_by_chance(machine: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    assert run("devices", "--output", str(path), variables=machine).returncode == 0
    assert len(json.loads(path.read_text())["devices"]) == 3
    again = run("devices", "--output", str(path), variables=machine)
    assert again.returncode == 2 and "--force" in again.stderr
    assert run("devices", "--output", str(path), "--force", variables=machine).returncode == 0


def test_a_machine_without_devices_is_no_failure(tmp_path: Path) -> None:
    blind = {**os.environ, "STUB_NVML": str(tmp_path / "absent")}
    done = run("devices", variables=blind)
    assert done.returncode == 0
    if "No GPU was found" in done.stdout:  # the machine of this test may have one
        assert "host" in done.stdout


def test_bad_usage_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--what"]) == 2
    assert main(["watch", "--interval", "0.01"]) == 2
    assert "0.1" in capsys.readouterr().err
