"""From a `Recording` to its `Diagnosis`: what `nearpeak run` and `nearpeak report` show."""

from __future__ import annotations

from nearpeak.diagnose.diagnosis import Diagnosis, conclude
from nearpeak.diagnose.reduce_recording import reduce_recording
from nearpeak.recording import Recording

__all__ = ["diagnose_recording"]


def diagnose_recording(recording: Recording) -> Diagnosis:
    """What holds a recorded run back. May be asked while the run goes on."""
    facts, unknown = reduce_recording(recording)
    return conclude(facts, unknown)
