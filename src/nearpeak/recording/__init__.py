"""`Recording`: one run on disk, as a folder that can be read while the run goes on and after it was killed.

    plan.json          the plan that was executed, where there was one
    job.json           the job, as far as it has plain values
    recording.sqlite   `info` (name, JSON value) and the tables of `recording.schema`: processes, steps, workers,
                       stacks, events, readings

The database is in WAL mode: readers never hold a writer up, several processes may write, and rows written before a
`kill -9` stay. Writing must never end a training: a disk that fails costs rows and one warning, not the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearpeak.recording.reader import Recording
    from nearpeak.recording.rows import RowWriter
    from nearpeak.recording.run_info import Ending, RunInfo, describe_run
    from nearpeak.recording.schema import (
        PHASES,
        EventRecord,
        ProcessRecord,
        ReadingBlock,
        ReadingRecord,
        StackRecord,
        StepRecord,
        WorkerRecord,
    )
    from nearpeak.recording.writer import RecordingWriter, StepSource

__all__ = [
    "PHASES",
    "Ending",
    "EventRecord",
    "ProcessRecord",
    "ReadingBlock",
    "ReadingRecord",
    "Recording",
    "RecordingWriter",
    "RowWriter",
    "RunInfo",
    "StackRecord",
    "StepRecord",
    "StepSource",
    "WorkerRecord",
    "describe_run",
]

_HOMES = {
    "Recording": "reader",
    "Ending": "run_info",
    "RunInfo": "run_info",
    "describe_run": "run_info",
    "RecordingWriter": "writer",
    "RowWriter": "rows",
    "StepSource": "writer",
}


def __getattr__(name: str) -> Any:
    """Loaded when used: the probe needs the rows alone, in processes that may not have the rest of us."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'schema')}"), name)
