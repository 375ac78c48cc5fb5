"""Where and when a run was made, and how it ended."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

__all__ = ["Ending", "Outcome", "RunInfo", "describe_run", "now_text"]

Outcome = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Where and when a run was made."""

    started_at: str
    """UTC, ISO 8601."""
    nearpeak_version: str
    python_version: str
    system: str
    host: str
    command: tuple[str, ...]
    torch_version: str | None = None
    device: str | None = None
    """Name of the device that trained, as its driver reports it."""
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. A recording without one was killed, or still runs."""

    at: str
    outcome: Outcome
    lost_steps: int
    """Steps that the disk refused."""
    exit_code: int | None = None
    """Of a command that was watched."""


def describe_run(
    *,
    command: tuple[str, ...] | None = None,
    torch_version: str | None = None,
    device: str | None = None,
    ranks: int = 1,
) -> RunInfo:
    """The facts of this process, now."""
    from nearpeak import __version__

    return RunInfo(
        started_at=now_text(),
        nearpeak_version=__version__,
        python_version=platform.python_version(),
        system=platform.platform(),
        host=platform.node(),
        command=tuple(sys.argv) if command is None else command,
        torch_version=torch_version,
        device=device,
        ranks=ranks,
    )


def now_text() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
