"""A short run of the benchmark that kills trainings at random moments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kill.py"


@pytest.mark.slow
def test_trainings_that_are_killed_end_with_the_same_weights():
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--kills", "12", "--seed", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "differ in any bit: 0" in done.stdout
