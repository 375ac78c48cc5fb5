"""Two and three ranks make the training of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nearpeak.train.equivalence import compare_gradients

SCRIPT = Path(__file__).parent / "ranks.py"


def run_ranks(count: int, folder: Path) -> list[dict]:
    """What each rank wrote."""
    folder.mkdir()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"] if count > 1 else []
    command = [sys.executable, *launcher, str(SCRIPT), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = []
    for rank in range(count):
        rest = json.loads((folder / f"rest_{rank}.json").read_text())
        found.append({"gradients": torch.load(folder / f"gradients_{rank}.pt"), **rest})
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    return run_ranks(1, tmp_path_factory.mktemp("alone") / "out")[0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_train_what_one_process_trains(count, alone, tmp_path):
    for found in run_ranks(count, tmp_path / "out"):
        for name, reference in alone["gradients"].items():
            deviation = compare_gradients(reference, found["gradients"][name])
            assert deviation.relative < 1e-10, (name, deviation)
        assert len(found["losses"]["20 steps"]) == 20
        assert found["losses"]["20 steps"] == pytest.approx(alone["losses"]["20 steps"], abs=1e-5)
        assert len(found["losses"]["fp16 overflow"]) == 8 and found["losses"]["overflows"][0] > 0
        assert found["losses"]["fp16 overflow"] == pytest.approx(alone["losses"]["fp16 overflow"], rel=2e-3)
        assert "UnsupportedError" in found["refusal"], "the first rank's refusal must reach every rank"
        assert found["start"], "every rank must begin with the first rank's weights"
