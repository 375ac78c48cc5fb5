"""Autograd's anomaly detection was left on after a search for NaN."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import costs, phase_share, share_of_places
from nearpeak.diagnose.run_facts import PlaceFacts
from nearpeak.finding import Finding

__all__ = ["find"]

TRACING = ("/traceback.py", "/linecache.py", "autograd/anomaly_mode", "/tokenize.py", "/reprlib.py")
IN_PASSES = Portions(0.15, 0.5, 0.9)
"""It writes down the stack of every operation and looks through every gradient: the smaller the operations, the larger
its part. Measured on small layers: half to nine tenths of both passes."""


def find(facts: Facts) -> list[Finding]:
    """The setting says it all; samples inside Python's traceback tell how much it takes at least."""
    run = facts.run
    if run is None or not run.process.anomaly_detection:
        return []
    passes = phase_share(run, "forward") + phase_share(run, "backward")
    traced = share_of_places(run, ["forward"], _is_tracing)
    return [
        costs(
            "debugging",
            "Autograd's anomaly detection is on: every operation's stack is written down, every gradient searched",
            facts,
            gain_of(passes, IN_PASSES),
            remedy="torch.autograd.set_detect_anomaly(False), or use it only around the step in question: "
            "with torch.autograd.detect_anomaly():",
            verify="Run again: forward and backward must be shorter, and the losses the same.",
            formula="share of forward and backward × 0.15 to 0.9, likely 0.5",
            anomaly_detection=True,
            passes_share=passes,
            traceback_share_of_forward=traced,
            step_ms=run.mean_step_ms,
        )
    ]


def _is_tracing(place: PlaceFacts) -> bool:
    return any(name in frame for frame in place.frames for name in TRACING)
