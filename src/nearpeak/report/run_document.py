"""A recorded run as JSON, and in one line."""

from __future__ import annotations

from typing import Any

import msgspec

from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.recording import Recording
from nearpeak.report.document import diagnosis_document

__all__ = ["outcome_text", "run_document", "run_heading"]


def run_document(recording: Recording, diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis, and behind it which run it is of and its main figures; what is unknown is null."""
    run, ending = diagnosis.facts.run, recording.ending
    figures = {
        "steps_seen": None if run is None else run.steps_seen,
        "mean_step_ms": None if run is None else run.mean_step_ms,
        "phase_ms": None if run is None else run.phase_ms,
        "samples_per_s": None if run is None else run.samples_per_s,
        "samples_per_step": None if run is None else run.samples_per_step,
        "micro_batches_per_step": None if run is None else run.micro_batches_per_step,
        "padded_share": None if run is None else run.padded_share,
    }
    described = {
        "started_at": recording.run.started_at,
        "command": list(recording.run.command),
        "host": recording.run.host,
        "processes": len(recording.processes),
        "outcome": None if ending is None else ending.outcome,
        "exit_code": None if ending is None else ending.exit_code,
        "faults": [each.fault for each in recording.processes if each.fault],
        "setup": None if run is None else msgspec.to_builtins(run.process),
        **figures,
    }
    return diagnosis_document(diagnosis, source=str(recording.folder), run=described)


def run_heading(recording: Recording) -> str:
    """Which run it is: command, processes, how it ended."""
    command = " ".join(recording.run.command) or recording.folder.name
    count = len(recording.processes)
    processes = f"{count} processes" if count > 1 else None
    return " · ".join(filter(None, [command, processes, outcome_text(recording)]))


def outcome_text(recording: Recording) -> str:
    """How the run ended."""
    ending = recording.ending
    if ending is None:
        return "no ending recorded: it still runs, or was killed"
    return ending.outcome if ending.exit_code is None else f"{ending.outcome}, exit code {ending.exit_code}"
