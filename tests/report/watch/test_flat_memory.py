"""The live view runs on and on: what it holds must not grow with the number of its readings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stub_nvml import StubDevice, describe, environment, h100, has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="the stub driver needs gcc on Linux")
LOOP = Path(__file__).with_name("watch_loop.py")
MOST_GROWTH_BYTES = 48_000
"""24 bytes a tick: one object that each tick leaves behind, be it a number in a list, comes to more."""
NOT_READY = 27


def watched(library: Path, folder: Path, device: StubDevice) -> dict[str, Any]:
    """What the loop prints."""
    variables = environment(library, describe(folder / "devices.txt", [device]))
    done = subprocess.run(
        [sys.executable, str(LOOP)], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusing() -> StubDevice:
    """Refuses its lists of processes for good, and much else for the moment, again and again."""
    card = h100()
    del card.numbers["processes"]
    for key in ("gpm", "utilization", "power", "clock2", "pstate", "rows", "limits", "fields"):
        del card.numbers[key]
        card.errors[key] = NOT_READY
    return card


@pytest.mark.parametrize("kind", ["answering", "refusing"])
def test_thousands_of_ticks_hold_no_more_than_hundreds(kind: str, stub_library: Path, tmp_path: Path) -> None:
    card = h100(pids=(os.getpid(),)) if kind == "answering" else refusing()
    found = watched(stub_library, tmp_path, card)
    assert found["states"] == ["ok"]
    assert found["kept"] == 60
    assert found["lines"] == 40
    assert found["late_bytes"] - found["early_bytes"] < MOST_GROWTH_BYTES, found
    # The parts of a path pass through the interpreter's table of names, which grows by a megabyte when it is full.
    assert found["paths_a_tick"] < 0.2, found
