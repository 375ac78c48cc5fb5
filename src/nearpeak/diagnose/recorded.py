"""From a `Recording` to its `Diagnosis`: what `nearpeak run` and `nearpeak report` show."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.diagnose.diagnosis import Diagnosis, conclude
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.reduce_readings import host_facts, reduce_readings
from nearpeak.diagnose.reduce_recording import reduce_recording
from nearpeak.hardware.reading_store import load_devices, load_host, load_readings
from nearpeak.recording import Recording

__all__ = ["diagnose_recording", "with_devices"]


def diagnose_recording(recording: Recording) -> Diagnosis:
    """What holds a recorded run back. May be asked while the run goes on."""
    facts, unknown = reduce_recording(recording)
    return conclude(with_devices(facts, recording), unknown)


def with_devices(facts: Facts, recording: Recording) -> Facts:
    """The same with what the recording's readings say of devices and host, over its whole time."""
    host = list(load_host(recording))
    return replace(
        facts,
        devices=reduce_readings(load_readings(recording), load_devices(recording), source="the recording"),
        host=host_facts(host) if host else None,
    )
