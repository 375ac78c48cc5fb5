"""The example, its plain twin, and the twin under `nearpeak run`: one training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS, PLAIN = EXAMPLES / "hf_classification.py", EXAMPLES / "hf_classification_plain.py"


def run(folder: Path, *command: str) -> list[tuple[int, float]]:
    """(step, loss) of each logged step."""
    done = subprocess.run(
        [*command, "--output_dir", str(folder / "model")],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [(int(step), float(loss)) for step, loss in re.findall(r"step +(\d+)  loss ([\d.]+)", done.stdout)]


def test_the_twins_differ_by_one_import_line() -> None:
    ours, plain = (path.read_text().splitlines() for path in (OURS, PLAIN))
    differing = [(a, b) for a, b in zip(ours, plain, strict=True) if a != b]
    assert differing == [("from nearpeak.integrations.huggingface import Trainer", "from transformers import Trainer")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_three_are_one_training(tmp_path: Path) -> None:
    attached = [sys.executable, "-m", "nearpeak", "run", "--apply", "safe", "--output", str(tmp_path / "run"), "--"]
    plain = run(tmp_path, sys.executable, str(PLAIN))
    assert [step for step, _ in plain] == list(range(5, 45, 5))
    assert plain[-1][1] < 0.6 * plain[0][1]  # it learns
    for command in ([sys.executable, str(OURS)], [*attached, sys.executable, str(PLAIN)]):
        steps = run(tmp_path, *command)
        assert [step for step, _ in steps] == [step for step, _ in plain]
        assert [loss for _, loss in steps] == pytest.approx([loss for _, loss in plain], rel=1e-5)
    (process,) = json.loads((tmp_path / "run" / "result.json").read_text())["processes"]
    assert process["regrouped"] == process["windows"] == 40
    assert process["computed_tokens"] < process["own_tokens"] / 3
