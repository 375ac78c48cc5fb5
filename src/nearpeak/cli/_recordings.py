"""Which recording a verb means, and where its output goes: the same for every verb that takes a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.errors import DataError, SettingError, StorageError

if TYPE_CHECKING:
    from nearpeak.recording import Recording

__all__ = ["DATABASE", "RUNS", "find_run", "refuse_overwriting", "write_text"]

RUNS = Path("nearpeak-runs")
"""Where `nearpeak run` puts its recordings."""
DATABASE = "recording.sqlite"
MOST_NAMED = 5


def find_run(path: Path | None) -> Recording:
    """The recording in this folder, or the log in this file; without a name the newest under `nearpeak-runs/`."""
    from nearpeak.recording import Recording

    if path is not None and path.is_file() and path.name != DATABASE:
        return _of_log(path)
    return Recording(_newest() if path is None else _only_below(path))


def _of_log(path: Path) -> Recording:
    """A device log as a recording, which lasts as long as the command does."""
    import atexit
    import shutil
    import tempfile

    from nearpeak.diagnose.device_log import record_log
    from nearpeak.hardware.logs.log import read_log

    log = read_log(path)
    folder = tempfile.mkdtemp(prefix="nearpeak-log-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return record_log(log, folder)


def refuse_overwriting(option: str, path: Path | None, *, force: bool) -> None:
    """Before any work is done."""
    if path is not None and path.exists() and not force:
        raise SettingError(f"{option} {path}: the file exists; choose another or give --force.")


def refuse_unwritable(option: str, path: Path | None) -> None:
    """Before any work is done: a file in a folder that is missing or may not be written to."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise SettingError(f"{option} {path}: there is no folder {path.parent}; make it, or name another.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingError(f"{option} {path}: may not be written; name another place.")


def write_text(path: Path, text: str) -> None:
    """Write a file; why it could not be is said without a traceback."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}.") from None


def _newest() -> Path:
    found = sorted(RUNS.glob(f"**/{DATABASE}"), key=lambda each: each.stat().st_mtime)
    if not found:
        raise DataError(f"{RUNS}/: no recording in it. Name one, or make one with `nearpeak run -- COMMAND`.")
    return found[-1].parent


def _only_below(path: Path) -> Path:
    """The folder itself, or the one recording that it holds further down."""
    if not path.exists():
        raise DataError(f"{path}: no such folder. `nearpeak runs` lists what was recorded.")
    if (path / DATABASE).exists() or not path.is_dir():
        return path.parent if path.name == DATABASE else path
    below = sorted(each.parent for each in path.glob(f"**/{DATABASE}"))
    if len(below) > 1:
        named = ", ".join(map(str, below[:MOST_NAMED])) + (", …" if len(below) > MOST_NAMED else "")
        raise DataError(f"{path}: holds {len(below)} recordings; name one of {named}.")
    return below[0] if below else path
