"""TensorBoard's folders of profiles: ``plugins/profile/<time of the run>/<host>.<tool>``, with the same run in several
forms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["latest_run", "without_copies"]

XPLANE_ENDINGS = (".xplane.pb", ".xplane.pb.gz")
COPIES = (".trace.json", ".trace.json.gz", ".memory_profile.json.gz", ".dcn_collective_stats.pb", ".op_stats.pb")
ALSO_COPIES = ("perfetto_trace.json", "perfetto_trace.json.gz")


def without_copies(files: Sequence[Path]) -> list[Path]:
    """Without what was written from an XPlane file that stands beside it, and holds less."""
    with_xplane = {path.parent for path in files if path.name.endswith(XPLANE_ENDINGS)}
    return [path for path in files if not (path.parent in with_xplane and _is_copy(path.name))]


def _is_copy(name: str) -> bool:
    return name.endswith(COPIES) or name in ALSO_COPIES


def latest_run(files: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The files of the last run, where they are of several runs of one job; and a sentence on those left out.

    Runs are named by their time, so the last by name is the last by time.
    """
    runs = sorted({path.parent.name for path in files if path.parent.parent.name == "profile"})
    if len(runs) < 2:
        return list(files), []
    last = [path for path in files if path.parent.name == runs[-1]]
    return last, [f"There are {len(runs)} runs; the last, {runs[-1]}, was taken. Name another to see it."]
