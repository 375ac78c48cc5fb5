"""Attach to a command that knows nothing of us: to every Python process that it starts, however it starts it.

All it takes is an environment. PYTHONPATH begins with a folder that holds our sitecustomize, which every interpreter
runs; one variable holds the settings. Shells, launchers, `python -m` and spawned workers hand both on. A process
started with -I, -E or -S ignores them and is not attached. Each process may leave one small JSON record in a folder.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearpeak.errors import SettingError

__all__ = ["attached_environment", "read_records", "settings", "write_record"]

VARIABLE = "NEARPEAK_ATTACH"
INJECTED = Path(__file__).parent / "inject"


def attached_environment(
    hooks: Mapping[str, str | Sequence[str]],
    *,
    records: str | Path,
    options: Mapping[str, Any] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """An environment in which every Python process calls our functions.

    `hooks` says what to call after which import: ``{"transformers.trainer": "nearpeak.some.module:function"}``; the
    function gets the module; several functions are given as a list. `options` reach it through `settings`. `records`
    is the folder for `write_record`.
    """
    listed = {module: [given] if isinstance(given, str) else list(given) for module, given in hooks.items()}
    wrong = [function for functions in listed.values() for function in functions if function.count(":") != 1]
    if wrong:
        raise SettingError(f"Hook {wrong[0]!r}: must be written as module:function.")
    environment = dict(os.environ if base is None else base)
    paths = [str(INJECTED), *_present_paths(environment)]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    chosen = {"hooks": listed, "options": dict(options or {}), "records": str(Path(records).resolve())}
    environment[VARIABLE] = json.dumps(chosen)
    return environment


def _present_paths(environment: Mapping[str, str]) -> list[str]:
    """What stands on PYTHONPATH, without ourselves: an attached command may attach another."""
    given = environment.get("PYTHONPATH", "")
    return [path for path in given.split(os.pathsep) if path and path != str(INJECTED)] if given else []


def settings() -> dict[str, Any] | None:
    """The settings that this process was attached with; None in a process that was not."""
    text = os.environ.get(VARIABLE)
    return None if text is None else json.loads(text)


def write_record(kind: str, content: Mapping[str, Any], *, number: int = 0) -> None:
    """Leave or replace this process's record of one kind and number; a reader never sees half of one."""
    chosen = settings()
    if chosen is None:
        return
    record = {"kind": kind, "pid": os.getpid(), "rank": _rank(), "command": sys.argv, **content}
    folder = Path(chosen["records"])
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
        json.dump(record, file)
    os.replace(file.name, folder / f"{kind}-{os.getpid()}-{number}.json")


def _rank() -> int | None:
    """Set by torchrun, accelerate and their like."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


def read_records(folder: str | Path) -> list[dict[str, Any]]:
    """The records of all processes, by rank, then in the order in which they were written."""
    files = sorted(Path(folder).glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    records = [json.loads(file.read_text()) for file in files]
    return sorted(records, key=lambda record: -1 if record["rank"] is None else record["rank"])
