"""Where recordings are kept when nobody says where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

__all__ = ["RUNS", "default_folder"]

RUNS = "nearpeak-runs"
"""Where runs are kept, in the folder in which the command was started."""


def default_folder(command: Sequence[str], runs: Path, now: datetime | None = None) -> Path:
    """``nearpeak-runs/20260131-093000-train``: in order of time, and by the script's name."""
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    script = next((part for part in command if part.endswith((".py", ".sh"))), command[0])
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(script).stem).strip("-.") or "run"
    folder = runs / f"{stamp}-{name}"
    tried = 1
    while folder.exists():
        tried += 1
        folder = runs / f"{stamp}-{name}-{tried}"
    return folder
