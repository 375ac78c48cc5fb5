"""The rules, one file each. A rule is a module with `find(facts) -> list[Finding]`; every module here is one."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from nearpeak.diagnose.facts import Facts
from nearpeak.finding import Finding, ranked

__all__ = ["findings"]


def findings(facts: Facts) -> list[Finding]:
    """What all rules find, ranked."""
    return ranked([finding for rule in _rules() for finding in rule.find(facts)])


@cache
def _rules() -> tuple[ModuleType, ...]:
    names = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return tuple(import_module(f"{__name__}.{name}") for name in names)
