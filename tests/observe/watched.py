"""Scripts for the tests, and the probe around them as `nearpeak run` puts it there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nearpeak
from nearpeak.observe.attach import attached_environment
from nearpeak.observe.probe import HOOKS
from nearpeak.recording import RowWriter, describe_run
from nearpeak.recording.writer import to_json

SOURCE = str(Path(nearpeak.__file__).parent.parent)

TRAINING = """
    import os, sys, time, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def make(width=32):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))
        data = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2), data

    def step(model, optimizer, values, kinds):
        loss = nn.functional.cross_entropy(model(values), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def train(steps=8, workers=0, each=lambda model, loss: None):
        model, optimizer, data = make()
        done = 0
        while done < steps:
            for values, kinds in DataLoader(data, batch_size=16, num_workers=workers):
                each(model, step(model, optimizer, values, kinds))
                done += 1
                if done == steps:
                    break
        return model
"""


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """In which every process is watched and recorded into the folder."""
    folder.mkdir(exist_ok=True)
    rows = RowWriter(folder)
    rows.write_info("run", to_json(describe_run()))
    rows.close()
    base = {**os.environ, "PYTHONPATH": SOURCE, **variables}
    return attached_environment(HOOKS, records=folder, options={"recording": str(folder)}, base=base)


def script(folder: Path, text: str) -> Path:
    """A script that may use the functions above."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(TRAINING) + textwrap.dedent(text))
    return path


def run(
    *arguments: str, watched: Path | None, cwd: Path, timeout_s: float = 90, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, watched where a folder is given."""
    plain = {**os.environ, "PYTHONPATH": SOURCE, **variables}
    env = plain if watched is None else environment(watched, **variables)
    return subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=timeout_s, cwd=cwd)


def run_script(folder: Path, text: str, *, watched: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Write a script and run it; its recording is `folder / "run"`."""
    path = script(folder, text)
    return run(sys.executable, str(path), watched=folder / "run" if watched else None, cwd=folder, **variables)
