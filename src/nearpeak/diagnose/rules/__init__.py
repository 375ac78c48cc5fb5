"""The rules, one file each. A rule is a module with `find(facts) -> list[Finding]`; every module here is one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from nearpeak.diagnose.facts import Facts
from nearpeak.finding import Finding, ranked

__all__ = ["findings"]


def findings(facts: Facts) -> list[Finding]:
    """What all rules find, ranked."""
    names = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    found = (import_module(f"{__name__}.{name}").find(facts) for name in names)
    return ranked([finding for each in found for finding in each])
