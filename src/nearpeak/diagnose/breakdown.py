"""Where every nanosecond of a step went: each instant has one cause, and the causes sum to the step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nearpeak.errors import SettingError

__all__ = ["IDLE_CAUSES", "Breakdown", "total"]

IDLE_CAUSES: dict[str, str] = {
    "input": "the next batch was not there",
    "host_work": "Python worked before the first kernel or after the last",
    "launch": "the next kernel was launched after the one before had ended",
    "sync": "the host waited for the device and launched nothing",
    "straggler": "another rank was late",
    "profiler": "the profiler itself held the step up",
    "other": "no cause that the source shows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Exclusive times of one or more steps of one rank. What hides behind compute counts as compute."""

    window_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: dict[str, int] = field(default_factory=dict)
    """Cause → time; the causes are the keys of `IDLE_CAUSES`."""

    def __post_init__(self) -> None:
        unknown = [cause for cause in self.idle_ns if cause not in IDLE_CAUSES]
        if unknown:
            raise SettingError(f"Breakdown(idle_ns={{{unknown[0]!r}: …}}): must be one of {', '.join(IDLE_CAUSES)}.")
        parts = (self.compute_ns, self.communication_ns, self.copy_ns, *self.idle_ns.values())
        if min(parts) < 0 or sum(parts) != self.window_ns:
            raise SettingError(f"{self}: parts must be at least 0 and sum to window_ns; their sum is {sum(parts)}.")

    def share(self, cause: str) -> float:
        """Of the window, 0 to 1: `compute`, `communication`, `copy`, `idle`, or a cause of idle time."""
        busy = {"compute": self.compute_ns, "communication": self.communication_ns, "copy": self.copy_ns}
        times_ns = {**busy, "idle": sum(self.idle_ns.values()), **dict.fromkeys(IDLE_CAUSES, 0), **self.idle_ns}
        return times_ns[cause] / self.window_ns if self.window_ns else 0.0

    def as_percentages(self) -> dict[str, Any]:
        """The form in which `nearpeak diagnose --json` gives it."""
        busy = {cause: 100 * self.share(cause) for cause in ("compute", "communication", "copy")}
        return {**busy, "idle": {cause: 100 * self.share(cause) for cause in IDLE_CAUSES}}


def total(breakdowns: list[Breakdown]) -> Breakdown:
    """The sum over steps, or over ranks."""
    return Breakdown(
        window_ns=sum(each.window_ns for each in breakdowns),
        compute_ns=sum(each.compute_ns for each in breakdowns),
        communication_ns=sum(each.communication_ns for each in breakdowns),
        copy_ns=sum(each.copy_ns for each in breakdowns),
        idle_ns={cause: sum(each.idle_ns.get(cause, 0) for each in breakdowns) for cause in IDLE_CAUSES},
    )
