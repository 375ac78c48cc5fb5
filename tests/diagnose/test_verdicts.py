"""The benchmark of verdicts, on two jobs: does it run, and does it name what was planted?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"

pytest.importorskip("torch")


@pytest.mark.slow
def test_a_short_run_names_the_planted_cause(tmp_path: Path) -> None:
    """Whether the measured gain fits is no question for a machine that does other things meanwhile."""
    jobs = ("--only", "input_slow_storage", "--only", "healthy_in_memory", "--steps", "30")
    arguments = [sys.executable, str(BENCHMARK), "--quick", *jobs, "--json", str(tmp_path / "figures.json")]
    # Threads that wait for a core give theirs to others: what else runs here would slow them down tenfold.
    patient = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(arguments, capture_output=True, text=True, env=patient, timeout=110, check=False)
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    storage = figures["planted"][0]
    assert (storage["top"], storage["named"]) == ("input", True), done.stdout
    assert storage["measured"] is not None
    assert figures["healthy"][0]["named"], done.stdout
