"""nearpeak: makes training use its devices fully, without changing what is learned.

A `Job` says what is learned, a `Plan` how it runs, `Run` does it. Names load when they are first used, so that
`import nearpeak` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearpeak.errors import NearpeakError
    from nearpeak.job import Job
    from nearpeak.observe.watching import watched, watching
    from nearpeak.plan import LoaderSettings, Plan, load_plan, save_plan
    from nearpeak.reason import Reason
    from nearpeak.train.run import Run
    from nearpeak.train.step import Step

__version__ = "0.1.0"

__all__ = [
    "Job",
    "LoaderSettings",
    "NearpeakError",
    "Plan",
    "Reason",
    "Run",
    "Step",
    "__version__",
    "load_plan",
    "save_plan",
    "watched",
    "watching",
]

_HOMES = {
    "Job": "nearpeak.job",
    "LoaderSettings": "nearpeak.plan",
    "NearpeakError": "nearpeak.errors",
    "Plan": "nearpeak.plan",
    "Reason": "nearpeak.reason",
    "Run": "nearpeak.train.run",
    "Step": "nearpeak.train.step",
    "load_plan": "nearpeak.plan",
    "save_plan": "nearpeak.plan",
    "watched": "nearpeak.observe.watching",
    "watching": "nearpeak.observe.watching",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nearpeak' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
